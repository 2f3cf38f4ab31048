from scheduler.models.events import SITE_ACTOR, Event
from scheduler.models.jobs import (
    Blob,
    Checkpoint,
    FailureReport,
    Job,
    JobFile,
    Lease,
    LogChunk,
    ResultCheck,
    Sweep,
)
from scheduler.models.pool import JoinToken, Node, Sponsor, Window

__all__ = [
    "SITE_ACTOR",
    "Blob",
    "Checkpoint",
    "Event",
    "FailureReport",
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
