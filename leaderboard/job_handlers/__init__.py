"""What each kind of job on the queue is for, and what came of it: one file a kind (`settings.JOB_KINDS`)."""
