"""API tokens."""

from __future__ import annotations

import hashlib
import secrets

from django.conf import settings
from django.db import models
from django.utils import timezone


class ApiTokenQuerySet(models.QuerySet["ApiToken"]):
    def with_secret(self, secret: str) -> ApiToken | None:
        return self.select_related("owner").filter(token_hash=ApiToken.hash_of(secret)).first()


class ApiToken(models.Model):
    """Lets a CI job request a run (`POST /api/v1/runs`). Stored hashed, shown once."""

    class Scope(models.TextChoices):
        CREATE_RUNS = "runs:create"

    name = models.CharField(max_length=80)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    token_hash = models.CharField(max_length=64, unique=True)
    scope = models.CharField(max_length=20, default=Scope.CREATE_RUNS, choices=Scope.choices)
    created_at = models.DateTimeField(default=timezone.now)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked = models.BooleanField(default=False)

    objects = ApiTokenQuerySet.as_manager()

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def hash_of(secret: str) -> str:
        """The secret has 256 random bits, so a plain hash is enough."""
        return hashlib.sha256(secret.encode()).hexdigest()

    def draw_secret(self) -> str:
        """Give the unsaved token a new secret and return it."""
        secret = f"dt_{secrets.token_urlsafe(32)}"
        self.token_hash = self.hash_of(secret)
        return secret
