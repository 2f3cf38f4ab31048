"""Publishes the secret of a season that has ended, so that everybody can draw its test text and check its scores."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.utils import timezone

from leaderboard.models import Run, Season, Track
from scheduler.models import SITE_ACTOR, Event


def publish_test_secrets() -> int:
    """Publish the secrets of the seasons before the current one that nothing is scored in any more; return how many."""
    current = Season.objects.current()
    if current is None:
        return 0
    in_use = Exists(Track.objects.filter(season=OuterRef("pk")))
    unfinished = Exists(Run.objects.filter(season=OuterRef("pk"), state__in=Run.UNFINISHED))
    secret = Season.objects.filter(secret_published_at=None).exclude(test_secret="")
    ended = secret.filter(~in_use, ~unfinished, active=True, started_at__lt=current.started_at)
    return sum(map(publish_test_secret, ended))


@transaction.atomic
def publish_test_secret(season: Season) -> bool:
    """Publish a season's secret, once; return whether this call did."""
    secret = Season.objects.filter(pk=season.pk, secret_published_at=None)
    if not secret.update(secret_published_at=timezone.now()):
        return False
    Event.record(SITE_ACTOR, season, f"{season} ended, and the secret of its test text is public: {season.test_secret}")
    return True
