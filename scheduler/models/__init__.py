from scheduler.models.events import Event
from scheduler.models.jobs import Blob, Checkpoint, Job, JobFile, Lease, LogChunk
from scheduler.models.pool import JoinToken, Node, Window
from scheduler.models.sponsors import Sponsor
from scheduler.models.sweeps import Sweep
from scheduler.models.vetting import Judgement

__all__ = [
    "Blob",
    "Checkpoint",
    "Event",
    "Job",
    "JobFile",
    "JoinToken",
    "Judgement",
    "Lease",
    "LogChunk",
    "Node",
    "Sponsor",
    "Sweep",
    "Window",
]
