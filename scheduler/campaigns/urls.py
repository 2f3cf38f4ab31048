"""Pages of the dataset swarm, below `/campaigns/`."""

from __future__ import annotations

from django.urls import path

from scheduler.campaigns import views
from scheduler.page_cache import cache_public

urlpatterns = [
    path("", cache_public(views.campaigns), name="campaigns"),
    path("live.json", views.campaigns_live, name="campaigns-live"),
    path("<slug:slug>/", cache_public(views.campaign), name="campaign"),
    path("<slug:slug>/live.json", views.campaign_live, name="campaign-live"),
    path("<slug:slug>/files/<path:path>", views.campaign_file, name="campaign-file"),
    path("<slug:slug>/line/", views.campaign_join_command, name="campaign-line"),
]
