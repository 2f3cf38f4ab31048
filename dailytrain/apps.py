from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register


class DailyTrainConfig(AppConfig):
    name = "dailytrain"

    def ready(self) -> None:
        from dailytrain import signing_in

        register(signing_in.half_configured)
        register(signing_in.open_doors, Tags.security, deploy=True)
