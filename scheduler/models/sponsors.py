"""Sponsors and their names on the public list."""

from __future__ import annotations

from django.conf import settings
from django.core.validators import URLValidator
from django.db import models
from django.utils import timezone

LINK = URLValidator(schemes=["http", "https"])


class Sponsor(models.Model):
    """A user who lends nodes. `Node.shown` says, node by node, whether the name is public."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="sponsor")
    name = models.CharField(max_length=60)
    link = models.CharField(max_length=200, blank=True, validators=[LINK])
    since = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name", "pk"]

    def __str__(self) -> str:
        return self.name
