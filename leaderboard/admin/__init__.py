"""What maintainers do in the admin. Django looks for it here."""

from leaderboard.admin import tracks

__all__ = ["tracks"]
