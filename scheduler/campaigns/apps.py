from __future__ import annotations

from django.apps import AppConfig


class CampaignsConfig(AppConfig):
    name = "scheduler.campaigns"
    label = "campaigns"
    verbose_name = "Dataset swarm"
