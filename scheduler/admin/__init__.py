"""The admin pages of the pool and the queue."""

from scheduler.admin import pool

__all__ = ["pool"]
