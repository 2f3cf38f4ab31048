from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class LeaderboardConfig(AppConfig):
    name = "leaderboard"

    def ready(self) -> None:
        from leaderboard.integrations.github import client
        from leaderboard.publishing import publications

        register(client.check_github_settings)
        register(publications.check_hub_settings)
