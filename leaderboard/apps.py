from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class LeaderboardConfig(AppConfig):
    name = "leaderboard"

    def ready(self) -> None:
        from leaderboard import publishing
        from leaderboard.github import checklist

        register(checklist.half_connected)
        register(publishing.half_connected)
