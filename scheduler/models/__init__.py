from scheduler.models.events import Event
from scheduler.models.jobs import Blob, Checkpoint, Job, JobFile, Lease, LogChunk
from scheduler.models.pool import JoinToken, Node, Window
from scheduler.models.sponsors import Sponsor
from scheduler.models.sweeps import Sweep
from scheduler.models.vetting import ResultCheck

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
