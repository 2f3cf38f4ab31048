"""Admin pages of the leaderboard. Django looks for them here."""

from leaderboard.admin import bounties, entries, outbox, people, rulings, seasons, tracks

__all__ = ["bounties", "entries", "outbox", "people", "rulings", "seasons", "tracks"]
