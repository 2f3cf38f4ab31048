"""Admin pages of the leaderboard. Django looks for them here."""

from leaderboard.admin import entries, outbox, people, rulings, seasons, tracks

__all__ = ["entries", "outbox", "people", "rulings", "seasons", "tracks"]
