"""The Django project: settings, URLs, Celery and the command that runs them all."""

from dailytrain.celery import app as celery_app

__all__ = ["celery_app"]
