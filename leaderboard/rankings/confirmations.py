"""Confirms record candidates: fresh seeds drawn by the server, on trusted nodes unrelated to the entry.

An entry whose first runs would be a record, or that a maintainer names, gets its track's number of confirmation runs at
once. When all are over it is decided once: do they agree with the first runs, and are they alone a record? All started
runs count: one that the model broke or a person stopped decides against the entry; one that the infrastructure broke is
retried with its seed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from leaderboard import runs, unrelated_nodes
from leaderboard.models import Confirmation, Entry, Run, Track
from leaderboard.models.standings import get_entry_name
from leaderboard.rankings import trust
from leaderboard.rankings.eligible_runs import ScoredRun
from leaderboard.rankings.standings import TrackStandings, load_scored_runs, rank_entries
from leaderboard.rankings.trust import TrustEvent
from leaderboard.recomputation import request_recomputation
from leaderboard.run_states import RunError
from scheduler.models import SITE_ACTOR, Event
from trainer.scoring.multiplier import Ladder, ResultsError

logger = logging.getLogger(__name__)
Outcome = Confirmation.Outcome
RECORD_EVENT = "record"
RECORD_KINDS = (Entry.Kind.ARCHITECTURE, Entry.Kind.MAIN)
AGREEMENT = 0.999
"""One-sided level at which confirmation runs that are worse than the first ones are more than bad luck. Strict, since
the first runs are why the entry was chosen, so some loss is expected."""
REPLICATED = "Replicated on unrelated, trusted nodes."
RETRY_AFTER = timedelta(hours=1)


class ConfirmationError(ValueError):
    """The entry cannot be confirmed."""


def queue_confirmation_runs(entry: Entry, *, actor: str) -> list[Run]:
    """Queue the entry's confirmation runs, once, and return them."""
    if entry.kind not in RECORD_KINDS or entry.state != Entry.State.APPROVED:
        raise ConfirmationError(f"{entry.title} is {entry.kind} and {entry.state}: it cannot hold a record.")
    if not unrelated_nodes.find_related_nodes(entry):
        raise ConfirmationError(f"{entry.title} has not been trained yet: there is nothing to confirm.")
    with transaction.atomic():
        runs.lock_season_and_entry(entry.track.season_id, entry.pk)
        if begun := list(filter_confirmation_runs(entry)):
            return begun
        count = entry.track.confirmations
        made = [runs.make_run(entry, entry.track, purpose=Run.Purpose.CONFIRMATION) for _ in range(count)]
        for run in made:
            runs.queue_run(run, actor=actor)
        Event.record(actor, entry, f"To be confirmed: {count} runs with fresh seeds on trusted, unrelated nodes.")
    return made


def filter_confirmation_runs(entry: Entry) -> QuerySet[Run]:
    here = {"track": entry.track_id, "season": entry.track.season_id, "purpose": Run.Purpose.CONFIRMATION}
    return Run.objects.filter(entry=entry, **here).order_by("pk")


def process_confirmations() -> None:
    """Queue confirmations, retry runs that the infrastructure broke, and decide what is over. Idempotent.

    What one entry or run lacks is logged and stops no other one.
    """
    for track in Track.objects.with_ladder():
        for entry in find_candidates(track):
            with log_errors(entry):
                queue_confirmation_runs(entry, actor=SITE_ACTOR)
        for run in find_broken_runs(track):
            with log_errors(run):
                runs.retry_run(run, actor=SITE_ACTOR)
        for entry in find_undecided_entries(track):
            with log_errors(entry):
                conclude_confirmation(entry)


@contextmanager
def log_errors(subject: Entry | Run) -> Iterator[None]:
    try:
        yield
    except (ConfirmationError, RunError) as error:
        logger.warning("%s: %s", subject, error)
    except Exception:
        logger.exception("The confirmation of %s failed.", subject)


def find_broken_runs(track: Track) -> QuerySet[Run]:
    rested = timezone.now() - RETRY_AFTER
    failed = Run.objects.failed().filter(track=track, season=track.season_id, purpose=Run.Purpose.CONFIRMATION)
    return failed.filter(cause="infrastructure", finished_at__lt=rested, entry__state=Entry.State.APPROVED)


# --- who is to be confirmed ------------------------------------------------------------------------------------------


def find_candidates(track: Track) -> list[Entry]:
    """Return entries whose first runs would be a record, if unrelated nodes exist."""
    return [entry for entry in find_fresh_candidates(track) if unrelated_nodes.find_unrelated_nodes(entry).exists()]


def find_fresh_candidates(track: Track) -> list[Entry]:
    """Return entries without confirmation runs whose first runs would be a record."""
    standings = rank_entries(track, load_reliable_runs(track))
    if standings.comparison is None or standings.baseline is None:
        return []
    entries = Entry.objects.approved().filter(track=track, kind__in=RECORD_KINDS).exclude(pk=standings.baseline)
    begun = Run.objects.filter(purpose=Run.Purpose.CONFIRMATION, season=track.season_id).values("entry")
    fresh = entries.exclude(pk__in=begun).filter(pk__in={row.entry for row in standings.rows})
    record = find_record_holder(track)
    rows = fresh.select_related("track__season").order_by("pk")
    return [entry for entry in rows if would_be_record(standings, entry.pk, record)]


def load_reliable_runs(track: Track) -> list[ScoredRun]:
    return load_scored_runs(Run.objects.scored(track).filter(trust__in=trust.RELIABLE))


def find_record_holder(track: Track) -> int | None:
    record = Run.objects.filter(track=track, season=track.season_id, trust=Run.Trust.RECORD).order_by("pk").last()
    return record.entry_id if record else None


def would_be_record(standings: TrackStandings, entry: int, record: int | None) -> bool:
    assert standings.comparison is not None
    rival = get_entry_name(record) if record not in (None, entry) else None
    try:
        return bool(standings.comparison.run_record_test(get_entry_name(entry), rival).is_record)
    except ResultsError:
        return False


# --- what came of it -------------------------------------------------------------------------------------------------


def find_undecided_entries(track: Track) -> list[Entry]:
    begun = Run.objects.filter(track=track, season=track.season_id, purpose=Run.Purpose.CONFIRMATION)
    decided = Confirmation.objects.filter(season=track.season_id).values("entry")
    entries = Entry.objects.filter(pk__in=begun.values("entry")).exclude(pk__in=decided).select_related("track__season")
    return [entry for entry in entries if all(is_over(run) for run in filter_confirmation_runs(entry))]


def is_over(run: Run) -> bool:
    return run.is_over and not (run.state == Run.State.FAILED and run.cause == "infrastructure")


def conclude_confirmation(entry: Entry) -> None:
    """Decide about an entry whose confirmation runs are over; wait while the ladder has no noise estimate."""
    confirming = list(filter_confirmation_runs(entry))
    if any(run.state != Run.State.FINISHED for run in confirming):
        store_decision(entry, Outcome.INCOMPLETE)
        return
    reliable = load_reliable_runs(entry.track)
    standings = rank_entries(entry.track, reliable)
    own = [run for run in reliable if run.entry == entry.pk and run.budget == entry.track.budget]
    first = [run for run in own if run.purpose != Run.Purpose.CONFIRMATION]
    second = [run for run in own if run.purpose == Run.Purpose.CONFIRMATION]
    ladder = standings.comparison.ladder if standings.comparison else None
    if ladder is None or not ladder.has_noise or len(second) < len(confirming) or not first:
        return
    record = find_record_holder(entry.track)
    worse = measure_excess_loss(ladder, first, second)
    with transaction.atomic():
        if worse > ladder.quantile(AGREEMENT):
            sentence = f"Disputed: the confirmation on unrelated nodes came out {worse:.1f} standard errors worse."
            if store_decision(entry, Outcome.WORSE, worse):
                apply_where_possible(get_first_runs(entry), TrustEvent.DISPUTE, sentence)
        elif would_be_record(standings, entry.pk, record):
            mark_record(entry, confirming, record)
        elif store_decision(entry, Outcome.REPLICATED):
            apply_where_possible(get_full_budget_runs(entry), TrustEvent.REPLICATE, REPLICATED)


def measure_excess_loss(ladder: Ladder, first: Sequence[ScoredRun], second: Sequence[ScoredRun]) -> float:
    """Return by how many standard errors the second runs are worse than the first ones.

    Losses are taken relative to the baseline's curve, so that slightly different compute does not matter.
    """

    def mean_excess(group: Sequence[ScoredRun]) -> float:
        xs = np.array([math.log(run.flops / ladder.full) if run.flops else 0.0 for run in group])
        return float(np.mean(np.array([run.bits_per_byte for run in group]) - ladder.loss_at(xs)))

    return (mean_excess(second) - mean_excess(first)) / (
        float(ladder.sigma) * math.sqrt(1 / len(first) + 1 / len(second))
    )


def store_decision(entry: Entry, outcome: Confirmation.Outcome, standard_errors: float | None = None) -> bool:
    """Store the outcome in the track's season; return whether this call did."""
    season, fields = entry.track.season, {"outcome": outcome, "standard_errors": standard_errors}
    _, is_new = Confirmation.objects.get_or_create(entry=entry, season=season, defaults=fields)
    if is_new:
        Run.objects.filter(entry=entry, season=season).update(revision=F("revision") + 1)
        request_recomputation(entry.track_id)
        Event.record(SITE_ACTOR, entry, outcome.label, RECORD_EVENT if outcome == Outcome.RECORD else "")
    return is_new


def mark_record(entry: Entry, confirming: Sequence[Run], former: int | None) -> None:
    """Make the confirmation runs the record; those of the former holder become replicated."""
    if not store_decision(entry, Outcome.RECORD):
        return
    if former not in (None, entry.pk):
        former_runs = Run.objects.filter(entry=former, trust=Run.Trust.RECORD)
        apply_where_possible(former_runs, TrustEvent.REPLICATE, f"The record went to {entry.title}.")
    apply_where_possible(get_first_runs(entry), TrustEvent.REPLICATE, REPLICATED)
    apply_where_possible(confirming, TrustEvent.RECORD, "A record.")
    if entry.based_on:
        Event.record(SITE_ACTOR, entry.based_on, f"{entry.title}, a record, builds on it.")


def get_full_budget_runs(entry: Entry) -> QuerySet[Run]:
    return Run.objects.scored(entry.track).filter(entry=entry, budget=entry.track.budget)


def get_first_runs(entry: Entry) -> QuerySet[Run]:
    return get_full_budget_runs(entry).exclude(purpose=Run.Purpose.CONFIRMATION)


def apply_where_possible(runs: Iterable[Run], event: TrustEvent, message: str) -> None:
    """Apply an event to those of the runs whose trust allows it."""
    for run in runs:
        if run.trust in trust.TRUST_TRANSITIONS[event][0]:
            trust.apply_trust_event(run, event, actor=SITE_ACTOR, message=message)
