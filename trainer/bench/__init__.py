"""`dailytrain bench`: our systems and other people's on one shape, side by side in one run.

Each contender is a process of its own (`contender`), told in turns (`turns`) to make some steps, so that all of them
meet the same state of the machine and none sees another's threads or allocator. `command` is the way in.
"""
