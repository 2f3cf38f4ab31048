"""`dailytrain bench`: training speed of our implementation and of others, on one shape.

Each contender runs in its own process (`contender`). They take turns (`round_robin`), so that all of them meet the same
state of the machine and none shares threads or an allocator with another.
"""
