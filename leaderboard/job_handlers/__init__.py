"""Handlers of the kinds of jobs, one file a kind (`settings.JOB_KINDS`)."""
