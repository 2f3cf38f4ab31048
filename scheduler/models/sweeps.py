"""The time of the last sweep."""

from __future__ import annotations

from django.db import models


class Sweep(models.Model):
    """A single row. After a long gap the site was down, so silent nodes keep their leases."""

    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"swept at {self.at:%Y-%m-%d %H:%M:%S}"
