"""Rulings: which entries do not rank by one is the column `Entry.ruling`, for standings, policies and pages.

Beat applies the rulings in force to entries that have come since.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from leaderboard import graphs, outbox
from leaderboard.integrations.github.comments import RULING
from leaderboard.models import Entry, OutboxMessage, Ruling, Run, TracedGraph
from leaderboard.recomputation import request_recomputation
from scheduler.models import SITE_ACTOR, Event


@transaction.atomic
def apply_rulings() -> int:
    """Store by which ruling in force each entry does not rank, the oldest one first; return how many changed."""
    found: dict[int, int] = {}
    rulings = Ruling.objects.select_for_update(no_key=True).in_force().filter(effect=Ruling.Effect.UNRANKED)
    for ruling in rulings.order_by("-pk"):
        found |= dict.fromkeys(ruling.find_entries().values_list("pk", flat=True), ruling.pk)
    entries = Entry.objects.select_for_update(no_key=True).filter(Q(ruling__isnull=False) | Q(pk__in=found))
    changed = [entry for entry in entries.order_by("pk") if entry.ruling_id != found.get(entry.pk)]
    for entry in changed:
        store_ruling(entry, found.get(entry.pk))
    Run.objects.filter(entry__in=changed).update(revision=F("revision") + 1)
    for track in {entry.track_id for entry in changed}:
        request_recomputation(track)
    for ruling in Ruling.objects.in_force().filter(effect=Ruling.Effect.CAP):
        above = ruling.find_entries().exclude(pull_request=None)
        enqueue_comments(ruling.pk, {*above.values_list("pull_request", flat=True)} - list_commented(ruling))
    return len(changed)


def list_commented(ruling: Ruling) -> set[int]:
    told = OutboxMessage.objects.filter(key__startswith=f"{RULING}:{ruling.pk}:")
    return {*told.values_list("payload__pull", flat=True)}


def enqueue_comments(ruling: int, pulls: Iterable[int]) -> None:
    for pull in pulls:
        outbox.enqueue(RULING, f"{RULING}:{ruling}:{pull}", {"pull": pull, "ruling": ruling})


def store_ruling(entry: Entry, ruling: int | None) -> None:
    Entry.objects.filter(pk=entry.pk).update(ruling=ruling)
    sentence = f"Ruling {ruling}: it does not rank." if ruling else f"Ruling {entry.ruling_id} no longer concerns it."
    Event.record(SITE_ACTOR, entry, sentence)
    if pull := entry.pull_request_id:
        for each in filter(None, {entry.ruling_id, ruling}):
            enqueue_comments(each, [pull])


@transaction.atomic
def revoke_ruling(ruling: Ruling, actor: str) -> bool:
    """Revoke a ruling; its entries rank again unless another one concerns them. Return whether it was in force."""
    if not Ruling.objects.in_force().filter(pk=ruling.pk).update(revoked_at=timezone.now()):
        return False
    Event.record(actor, ruling, f"Revoked: {ruling.text}")
    apply_rulings()
    if ruling.effect == Ruling.Effect.CAP:
        enqueue_comments(ruling.pk, list_commented(ruling))
        since = TracedGraph.objects.exclude(hash="").filter(entry__created_at__gte=ruling.created_at)
        graphs.check_caps(*since.select_related("entry", "season", "baseline_graph"))
    return True
