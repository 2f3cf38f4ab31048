"""`dailytrain bench`: training speed of our implementation and of others, on one shape.

Each contender runs in its own process (`contender`). They take turns (`round_robin`), so that all run under the same
conditions and none shares threads or an allocator with another.
"""
