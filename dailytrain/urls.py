"""Addresses. Pages are in `leaderboard/urls.py`, what nodes say is in `scheduler/node_api.py`."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from dailytrain.health import healthz
from leaderboard.api import api
from scheduler.node_api import node_api

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("admin/", admin.site.urls),
    path("api/v1/", api.urls),
    path("api/node/v1/", node_api.urls),
    path("", include("leaderboard.urls")),
]
