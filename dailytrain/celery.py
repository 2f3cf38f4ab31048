"""The Celery application. Tasks live in `tasks.py` of each app."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")

app = Celery("dailytrain")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
