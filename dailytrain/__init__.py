"""The Django project: settings, addresses, Celery, the process that runs them all. Wiring only."""

from dailytrain.celery import app as celery_app

__all__ = ["celery_app"]
