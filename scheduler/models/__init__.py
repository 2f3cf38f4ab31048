from scheduler.models.events import Event
from scheduler.models.jobs import Blob, Checkpoint, Job, JobFile, Lease, LogChunk
from scheduler.models.pool import JoinToken, Node
from scheduler.models.sweeps import Sweep

__all__ = ["Blob", "Checkpoint", "Event", "Job", "JobFile", "JoinToken", "Lease", "LogChunk", "Node", "Sweep"]
