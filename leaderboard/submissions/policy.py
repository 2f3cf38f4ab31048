"""Approval by policy: tracks approve traced entries without a maintainer, within GPU-hours of a day.

A decision is the column `Entry.obstacle`, or the approval; each writes an Event of the kind `policy.<decision>`. Beat
decides again about entries that wait for hours, or for the end of a pause.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from allauth.socialaccount.models import SocialAccount
from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone

from leaderboard import caps, graphs, runs
from leaderboard.models import ApprovalLimits, Entry, Run, TracedGraph, Track
from leaderboard.rankings.trust import RELIABLE
from leaderboard.submissions import families, intake
from scheduler import matching
from scheduler.models import SITE_ACTOR, Event

logger = logging.getLogger(__name__)
Obstacle = Entry.Obstacle
FINAL = (Obstacle.PYTHON, Obstacle.REOPENED, Obstacle.SMOKE)
"""Obstacles that last until a person decides or another smoke test ends."""
LIMITS = (Obstacle.PAUSED, Obstacle.AUTHOR_HOURS, Obstacle.SITE_HOURS)
"""Obstacles that time, or the end of a pause, removes."""
DAY = timedelta(hours=24)
AT_ONCE = 100
"""Earlier decisions that are looked at again in a call, oldest first; the next call goes on after them."""


def decide_entries() -> int:
    """Decide about the entries that wait on tracks with a policy, oldest first; return how many are approved.

    No entry stops another. While nothing can be approved, only new ones get their decision.
    """
    waiting = Entry.objects.filter(state=Entry.State.PROPOSED, track__season__active=True).exclude(smoke={})
    waiting = waiting.exclude(track__approval=Track.Approval.MAINTAINER).exclude(obstacle__in=FINAL)
    limits, count = ApprovalLimits.load(), 0
    if limits.is_paused or count_hours(Q(), timezone.now()) >= limits.site_hours:
        waiting = waiting.filter(obstacle="")
    earlier = waiting.exclude(obstacle="").order_by("pk").values_list("pk", flat=True)
    following, first = (earlier.filter(**{f"pk__{side}": limits.cursor})[:AT_ONCE] for side in ("gt", "lte"))
    if again := [*following, *first][:AT_ONCE]:
        ApprovalLimits.objects.update(cursor=again[-1])
    waiting = waiting.filter(Q(obstacle="") | Q(pk__in=again))
    for entry in waiting.select_related("track").order_by("pk"):
        try:
            count += decide_entry(entry)
        except Exception:
            logger.exception("No policy could decide about %s.", entry)
    return count


@transaction.atomic
def decide_entry(entry: Entry) -> bool:
    """Approve the entry, or store what prevents it; return whether it is approved now.

    The locks serialize decisions: of two equal graphs, or two entries for the last hours, one is approved.
    """
    runs.lock_jobs(entry)
    graphs.lock_season(entry.track.season_id)
    rows = Entry.objects.select_for_update(of=("self",), no_key=True)
    entry = rows.select_related("track__season", "pull_request").get(pk=entry.pk)
    if entry.state != Entry.State.PROPOSED or entry.track.approval == Track.Approval.MAINTAINER:
        return False
    graph = families.find_graph(entry)
    if graph is not None and caps.needs_baseline_graph(graph):
        return False  # its smoke test continues with the baseline
    limits = ApprovalLimits.objects.select_for_update().get(pk=ApprovalLimits.load().pk)
    now, hours = timezone.now(), compute_hours(entry.track)
    obstacle, other = find_obstacle(entry, graph)
    if obstacle := obstacle or find_limit(entry, limits, hours, now):
        store_obstacle(entry, obstacle, other)
        return False
    decided = {"obstacle": "", "duplicate_of": None, "waits_for": None}
    Entry.objects.filter(pk=entry.pk).update(policy_approved_at=now, policy_hours=hours, **decided)
    message = f"Approved by the policy of {entry.track.name}: {hours:.2g} GPU-hours."
    Event.record(SITE_ACTOR, entry, message, "policy.approved")
    intake.approve_entry(entry, entry.sha, None)
    return True


def store_obstacle(entry: Entry, obstacle: Obstacle, other: Entry | None) -> None:
    """Store an obstacle; `other`: the entry that has the same graph, or that this one waits for."""
    is_copy = obstacle == Obstacle.DUPLICATE
    found = {"obstacle": obstacle, "duplicate_of": other if is_copy else None, "waits_for": None if is_copy else other}
    if Entry.objects.filter(pk=entry.pk).exclude(**found).update(**found):
        Event.record(SITE_ACTOR, entry, f"Not approved automatically: {obstacle.label}", f"policy.{obstacle}")


def find_obstacle(entry: Entry, graph: TracedGraph | None) -> tuple[Obstacle | None, Entry | None]:
    """Return what prevents the approval, apart from the limits of a day, and the other entry that is the reason."""
    if entry.is_held:
        return Obstacle.HELD, None
    if entry.runs_python:
        return Obstacle.PYTHON, None
    if entry.policy_approved_at is not None:
        return Obstacle.REOPENED, None
    if entry.smoke.get("passed") is not True:
        return Obstacle.SMOKE, None
    if graph is None:
        return Obstacle.CAPS, None
    if entry.ruling_id is not None:
        return Obstacle.RULING, None
    if twin := find_duplicate(entry, graph):
        return Obstacle.DUPLICATE, twin
    author = match_author(entry)
    if author is None:
        return Obstacle.ANONYMOUS, None
    if entry.track.approval == Track.Approval.KNOWN and not has_scored_entry(author):
        return Obstacle.UNKNOWN, None
    if entry.family_id and (first := families.find_first_runner(entry)):
        return Obstacle.FAMILY, first
    behind = families.find_member_behind(entry) if entry.family_id else None
    return (Obstacle.BEHIND, behind) if behind else (None, None)


def find_limit(entry: Entry, limits: ApprovalLimits, hours: float, now: datetime) -> Obstacle | None:
    author = match_author(entry)
    assert author is not None, "an unknown author is an obstacle"
    if limits.is_paused:
        return Obstacle.PAUSED
    if count_hours(author, now) + hours > limits.author_hours:
        return Obstacle.AUTHOR_HOURS
    older = Entry.objects.filter(obstacle=Obstacle.SITE_HOURS, state=Entry.State.PROPOSED, pk__lt=entry.pk)
    is_early = not entry.obstacle and older.exists()  # it takes its turn after those that wait for the same hours
    return Obstacle.SITE_HOURS if is_early or count_hours(Q(), now) + hours > limits.site_hours else None


def find_duplicate(entry: Entry, graph: TracedGraph) -> Entry | None:
    """Return another entry of the track that trains the same model by the same batch, and was earlier, decided or run.

    The canonical form of a graph includes the recipe, and neither names nor order. Undecided later entries give way,
    and withdrawn ones that never ran.
    """
    canonical = graph.summary.get("canonical_hash")  # graphs of older nodes have none
    same = Q(hash=graph.hash) | Q(summary__canonical_hash=canonical) if canonical else Q(hash=graph.hash)
    equal = TracedGraph.objects.filter(same, track=graph.track_id, season=graph.season_id)
    batch = graph.config.get("train", {}).get("batch")
    counts = Q(entry__state__in=[Entry.State.APPROVED, Entry.State.REJECTED]) | Q(entry__runs__counts=True)
    undecided = Q(entry__state__in=intake.UNDECIDED_STATES, entry__lt=entry.pk)
    others = equal.filter(counts | undecided).exclude(entry=entry).select_related("entry").order_by("entry")
    return next((other.entry for other in others if other.config.get("train", {}).get("batch") == batch), None)


def match_author(entry: Entry) -> Q | None:
    """Return the condition for entries of the same author, by GitHub's id and by account; None if neither is known."""
    return match_person(get_github_number(entry), entry.requested_by_id)


def get_github_number(entry: Entry) -> str:
    return str(entry.pull_request.author_id or "") if entry.pull_request else ""


def match_person(number: str, user: int | None) -> Q | None:
    """Return the condition for the entries of an account of GitHub, or of a user here."""
    person = identify_person(number, user, read_github_numbers({user}))
    own = Q(requested_by=user) if user else Q()
    if person and person[0] == "github":
        accounts = SocialAccount.objects.filter(provider="github", uid=person[1])
        own |= Q(pull_request__author_id=int(person[1])) | Q(requested_by__in=accounts.values("user"))
    return own or None


def identify_person(number: str, user: int | None, numbers: Mapping[int, str]) -> tuple[str, str] | None:
    """Return one key for a person: the account of GitHub, which a user here may have, else the user."""
    if number := number or numbers.get(user or 0, ""):
        return "github", number
    return ("user", str(user)) if user else None


def read_github_numbers(users: Collection[int | None]) -> dict[int, str]:
    """Return the accounts of GitHub by user. One query."""
    accounts = SocialAccount.objects.filter(provider="github", user__in=[user for user in users if user])
    return dict(accounts.order_by("-pk").values_list("user", "uid"))


def has_scored_entry(author: Q) -> bool:
    scored = Run.objects.filter(state=Run.State.FINISHED, bits_per_byte__isnull=False, trust__in=RELIABLE)
    return scored.filter(entry__in=Entry.objects.filter(author)).exists()


def count_hours(author: Q, now: datetime) -> float:
    """Return the GPU-hours that policies approved within 24 hours, of these entries."""
    recent = Entry.objects.filter(author, policy_approved_at__gt=now - DAY)
    return float(recent.aggregate(hours=Sum("policy_hours"))["hours"] or 0.0)


def compute_hours(track: Track, runs: float | None = None) -> float:
    """Return the GPU-hours of an approved entry: its trial, and these runs, by default those that it surely gets."""
    if runs is None:
        runs = 1 if track.stops_early else track.seeds
    share = runs + float(track.trial.get("part", 0.0))
    gpus = max(matching.parse_labels(tuple(track.needs_labels)).gpus, 1)
    return track.expected_seconds * share * gpus / 3600


def charge_hours(run: Run) -> None:
    """Charge its author's and the site's hours of the day with what an entry's runs use: of a stopped one, its part."""
    seeds = Run.objects.filter(entry=run.entry_id, budget=run.budget, purpose=Run.Purpose.ENTRY)
    used = sum(seed.fraction if seed.state == Run.State.STOPPED else 1.0 for seed in seeds)
    hours = compute_hours(run.track, min(used, run.track.seeds))
    Entry.objects.filter(pk=run.entry_id, policy_approved_at__isnull=False).update(policy_hours=hours)


@transaction.atomic
def set_paused(is_paused: bool, actor: str) -> None:
    """Pause or resume all automatic approvals."""
    limits = ApprovalLimits.load()
    if ApprovalLimits.objects.filter(pk=limits.pk, is_paused=not is_paused).update(is_paused=is_paused):
        Event.record(actor, limits, f"Automatic approvals {'paused' if is_paused else 'resumed'}.")


@transaction.atomic
def set_held(entry: Entry, is_held: bool, actor: str) -> bool:
    """Hold an entry from automatic decisions, or release it; return whether it changed."""
    changed = Entry.objects.filter(pk=entry.pk, is_held=not is_held).update(is_held=is_held)
    if changed:
        Event.record(actor, entry, "Held: no policy approves it or moves it up." if is_held else "No longer held.")
    return changed == 1
