"""The admin pages of the pool and the queue."""

from scheduler.admin import audit_log, pool

__all__ = ["audit_log", "pool"]
