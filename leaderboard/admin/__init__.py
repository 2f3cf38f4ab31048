"""Admin pages of the leaderboard. Django looks for them here."""

from leaderboard.admin import entries, notices, outbox, people, seasons, tracks

__all__ = ["entries", "notices", "outbox", "people", "seasons", "tracks"]
