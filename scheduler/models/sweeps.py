"""When the queue was last swept."""

from __future__ import annotations

from django.db import models


class Sweep(models.Model):
    """One row. A long gap since the last sweep: the site was down, and no node is to blame for its silence."""

    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"swept at {self.at:%Y-%m-%d %H:%M:%S}"
