"""The maintainers' morning: what needs a person, each with its buttons, and the last night in numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.db.models import Count, Q
from django.urls import reverse

from leaderboard.models import ApprovalLimits, Confirmation, Entry, Ruling, Run, Track
from leaderboard.rankings import confirmations
from leaderboard.submissions import policy
from leaderboard.unrelated_nodes import find_unrelated_nodes
from scheduler.models import Event

NIGHT, WEEK = timedelta(hours=24), timedelta(days=7)
Outcome = Confirmation.Outcome
FAULTS = (Entry.Obstacle.CAPS, Entry.Obstacle.RULING, Entry.Obstacle.DUPLICATE, Entry.Obstacle.BEHIND)
MODELS_DIFFER = Q(runs__checks__look_ahead__is_beyond_rounding=True) | Q(runs__passes_differ=True)


@dataclass(frozen=True)
class Button:
    """A form of one click, or without fields a link. `reason`: what its author will read, if it needs one; prefilled
    with a fault that the site found."""

    label: str
    address: str
    fields: Mapping[str, object] = field(default_factory=dict)
    reason: str | None = None


@dataclass(frozen=True)
class Decision:
    kind: str
    title: str
    address: str
    why: str
    buttons: tuple[Button, ...]


def list_decisions(now: datetime) -> list[Decision]:
    """Approvals are the last, since only they may be many."""
    records = (*list_candidates(), *list_incomplete_confirmations(now))
    return [*records, *list_disputes(), *list_proposed_rulings(), *list_budgets(now), *list_approvals()]


def list_candidates() -> Iterator[Decision]:
    """Yield the record candidates that the site cannot confirm by itself."""
    for track in Track.objects.with_ladder():
        for entry in confirmations.find_fresh_candidates(track):
            if not find_unrelated_nodes(entry).exists():
                why = f"It would be a record on {track.name}, and no trusted node is unrelated to it."
                buttons = (Button("Trust a node", reverse("admin:scheduler_node_changelist")),)
                yield Decision("Record", entry.title, entry.get_absolute_url(), why, buttons)


def list_incomplete_confirmations(now: datetime) -> Iterator[Decision]:
    """Yield this week's entries whose confirmation ended without a decision about their result."""
    ended = Confirmation.objects.filter(outcome=Outcome.INCOMPLETE, season__active=True, decided_at__gt=now - WEEK)
    for confirmation in ended.select_related("entry").order_by("pk"):
        entry, address = confirmation.entry, confirmation.entry.get_absolute_url()
        why = confirmation.get_outcome_display()
        yield Decision("Record", entry.title, address, why, (Button("Look at its runs", address),))


def list_disputes() -> Iterator[Decision]:
    disputed = Run.objects.with_entry().filter(trust=Run.Trust.DISPUTED, track__season__active=True)
    for run in disputed.order_by("pk"):
        event = Event.objects.about(run).filter(sentence__startswith="Disputed").last()
        why = event.sentence if event else "Its result is disputed."
        fields = {"action": "settle", "_selected_action": run.pk}
        settle = Button("Settle: it counts again", reverse("admin:leaderboard_run_changelist"), fields)
        query = urlencode({"scope": "entries", "effect": "unranked", "listed": run.entry_id, "text": why})
        rule_out = Button("Rule it out", f"{reverse('admin:leaderboard_ruling_add')}?{query}")
        yield Decision("Dispute", f"{run.entry.title}, run {run.pk}", run.get_absolute_url(), why, (settle, rule_out))


def list_proposed_rulings() -> Iterator[Decision]:
    """Yield the families that several authors entered and whose scores need the same correction."""
    flawed = Entry.objects.filter(MODELS_DIFFER, ruling=None, family__isnull=False, track__season__active=True)
    families = flawed.order_by().values("family").annotate(authors=Count("author", distinct=True))
    families = families.exclude(family__in=Ruling.objects.in_force().exclude(family=None).values("family"))
    for first in Entry.objects.filter(pk__in=families.filter(authors__gt=1).values("family")).order_by("pk"):
        why = f"The family of {first.title} scores by what it does not predict: later tokens, or another model."
        query = urlencode({"scope": "family", "effect": "unranked", "family": first.pk, "text": why})
        button = Button("Rule", f"{reverse('admin:leaderboard_ruling_add')}?{query}")
        yield Decision("Ruling", first.title, first.get_absolute_url(), why, (button,))


def list_budgets(now: datetime) -> Iterator[Decision]:
    limits, proposed = ApprovalLimits.load(), Entry.objects.filter(state=Entry.State.PROPOSED)
    if limits.is_paused:
        why = f"Automatic approvals are paused, {proposed.filter(obstacle__in=policy.LIMITS).count()} wait."
        resume = Button("Resume", reverse("admin:leaderboard_entry_pause"), {"paused": "no", "morning": 1})
        yield Decision("Pause", "Automatic approvals", reverse("admin:leaderboard_entry_queue"), why, (resume,))
    elif count := proposed.filter(obstacle=Entry.Obstacle.SITE_HOURS).count():
        used = policy.count_hours(Q(), now)
        why = f"{used:.1f} of {limits.site_hours:g} GPU-hours of a day are used; waiting for more: {count}."
        address = reverse("admin:leaderboard_approvallimits_change", args=[limits.pk])
        yield Decision("Budget", "Automatic approvals", address, why, (Button("Change the limits", address),))


def list_approvals() -> Iterator[Decision]:
    for entry in Entry.objects.proposed().select_related("track", "pull_request"):
        if not entry.needs_person:
            continue
        why = entry.get_obstacle_display() or entry.smoke_sentence or f"{entry.track.name} leaves it to a maintainer."
        names = ("approve", "reject")
        approve, reject = (reverse(f"admin:leaderboard_entry_{name}", args=[entry.pk]) for name in names)
        address = reverse("admin:leaderboard_entry_change", args=[entry.pk])
        first = Button(f"Approve {entry.sha[:8]}", approve, {"sha": entry.sha, "morning": 1})
        second = Button("Reject", reject, {"morning": 1}, name_fault(entry))
        buttons = (Button("Read it", address) if entry.runs_python else first, second)
        yield Decision("Approval", f"{entry.title}, {entry.track.name}", address, why, buttons)


def name_fault(entry: Entry) -> str:
    """Return what is wrong with an entry as a reason to reject it; empty if nothing was found."""
    if entry.smoke.get("passed") is False:
        return entry.smoke_sentence
    return entry.get_obstacle_display() if entry.obstacle in FAULTS else ""


def describe_night(now: datetime) -> str:
    """Return what needed no person within 24 hours, in a paragraph."""
    since, night = now - NIGHT, Event.objects.filter(at__gt=now - NIGHT)
    words = ("approved", "duplicate", "family", "smoke", "caps")
    decided = {word: night.filter(kind=f"policy.{word}").values("target_id").distinct().count() for word in words}
    ended = Run.objects.filter(finished_at__gt=since, purpose=Run.Purpose.ENTRY)
    came = Entry.objects.filter(created_at__gt=since).exclude(kind=Entry.Kind.MAIN).order_by()
    pulls = came.exclude(pull_request=None).values("pull_request").distinct().count()
    counts = {state: ended.filter(state=state).count() for state in (*Run.WITHOUT_RESULT, Run.State.FINISHED)}
    return (
        f"In the last 24 hours {pulls + came.filter(pull_request=None).count()} pull requests and other requests came. "
        f"{decided['approved']} were approved by policy; {decided['duplicate']} are copies of others, "
        f"{decided['family']} wait for a near one, {decided['smoke'] + decided['caps']} did not pass. "
        f"{counts[Run.State.FINISHED]} runs were scored, {counts[Run.State.STOPPED]} stopped early, "
        f"{counts[Run.State.FAILED]} failed. {night.filter(kind=confirmations.RECORD_EVENT).count()} records were set."
    )
