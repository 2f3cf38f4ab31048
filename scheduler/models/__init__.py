from scheduler.models.events import Event
from scheduler.models.jobs import Blob, Checkpoint, Job, JobFile, Lease, LogChunk, ResultCheck, Sweep
from scheduler.models.pool import JoinToken, Node, Sponsor, Window

__all__ = [
    "Blob",
    "Checkpoint",
    "Event",
    "Job",
    "JobFile",
    "JoinToken",
    "Lease",
    "LogChunk",
    "Node",
    "ResultCheck",
    "Sponsor",
    "Sweep",
    "Window",
]
