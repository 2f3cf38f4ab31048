"""Confirming a record candidate: fresh seeds, drawn by the server, on trusted nodes that have nothing to do with it.

An entry whose first runs would win by the record rule, or that a maintainer names, gets as many runs as its track has
fixed beforehand, all at once. When all of them are over it is decided, once: do they agree with the first runs, and do
they, alone, win? What made the entry a candidate was partly luck; what it is worth is told by these runs only.

All started runs count: one that the model broke or somebody stopped decides against the entry; one that the
infrastructure broke goes on with its seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from leaderboard import runs
from leaderboard.models import Entry, Run, Track
from leaderboard.models.standings import get_entry_name
from leaderboard.notifications import delivery
from leaderboard.rankings import bounties, trust
from leaderboard.rankings.eligible_runs import RECORD_CONFIRMED, ScoredRun
from leaderboard.rankings.standings import TrackStandings, load_scored_runs, rank_entries
from leaderboard.recomputation import request_recomputation
from scheduler.models import Event
from trainer.scoring.multiplier import Ladder, ResultsError

RECORD_KINDS = (Entry.Kind.ARCHITECTURE, Entry.Kind.MAIN)
AGREEMENT = 0.999
"""One-sided level at which confirmation runs that are worse than the first ones are more than bad luck. Strict, since
the first runs are why the entry was chosen, so some loss is expected."""
RETRY_AFTER = timedelta(hours=1)
"""How long a run rests that the infrastructure broke."""


class ConfirmationError(ValueError):
    """The entry cannot be confirmed; the message is a sentence for whoever asked."""


def queue_confirmation_runs(entry: Entry, *, actor: str) -> list[Run]:
    """Queue the entry's confirmation runs, once, and return them."""
    if entry.kind not in RECORD_KINDS or entry.state != Entry.State.APPROVED:
        raise ConfirmationError(f"{entry.title} is {entry.kind} and {entry.state}: it cannot hold a record.")
    if not trust.find_related_nodes(entry):
        raise ConfirmationError(f"{entry.title} has not been trained yet: there is nothing to confirm.")
    with transaction.atomic():
        Entry.objects.select_for_update().get(pk=entry.pk)
        if begun := list(confirmation_runs(entry)):
            return begun
        count = entry.track.confirmations
        made = [runs.make_run(entry, entry.track, purpose=Run.Purpose.CONFIRMATION) for _ in range(count)]
        for run in made:
            runs.queue_run(run, actor=actor)
        Event.record(actor, entry, f"To be confirmed: {count} runs with fresh seeds on trusted, unrelated nodes.")
    return made


def confirmation_runs(entry: Entry) -> QuerySet[Run]:
    here = {"track": entry.track_id, "season": entry.track.season_id, "purpose": Run.Purpose.CONFIRMATION}
    return Run.objects.filter(entry=entry, **here).order_by("pk")


def process_confirmations() -> None:
    """Start what is to be confirmed, revive what broke, and decide what is over. Safe to run at any time."""
    for track in Track.objects.with_ladder():
        for entry in find_candidates(track):
            queue_confirmation_runs(entry, actor=runs.SITE)
        for run in find_broken_runs(track):
            runs.retry_run(run, actor=runs.SITE)
        for entry in find_undecided_entries(track):
            conclude_confirmation(entry)


def find_broken_runs(track: Track) -> QuerySet[Run]:
    rested = timezone.now() - RETRY_AFTER
    failed = Run.objects.failed().filter(track=track, season=track.season_id, purpose=Run.Purpose.CONFIRMATION)
    return failed.filter(cause="infrastructure", finished_at__lt=rested)


# --- who is to be confirmed ------------------------------------------------------------------------------------------


def find_candidates(track: Track) -> list[Entry]:
    """Return the entries whose first runs would win, and that somebody can confirm."""
    standings = rank_entries(track, load_reliable_runs(track))
    if standings.comparison is None or standings.baseline is None:
        return []
    entries = Entry.objects.approved().filter(track=track, kind__in=RECORD_KINDS).exclude(pk=standings.baseline)
    begun = Run.objects.filter(purpose=Run.Purpose.CONFIRMATION, season=track.season_id).values("entry")
    fresh = entries.exclude(pk__in=begun).filter(pk__in={row.entry for row in standings.rows})
    record = find_record_holder(track)
    return [
        entry
        for entry in fresh.select_related("track__season").order_by("pk")
        if would_be_record(standings, entry.pk, record) and trust.find_unrelated_nodes(entry).exists()
    ]


def load_reliable_runs(track: Track) -> list[ScoredRun]:
    """Return the track's scored runs that can be relied on."""
    return load_scored_runs(Run.objects.scored(track).filter(trust__in=trust.RELIABLE))


def find_record_holder(track: Track) -> int | None:
    """Return the entry that holds the record."""
    record = Run.objects.filter(track=track, season=track.season_id, trust=Run.Trust.RECORD).order_by("pk").last()
    return record.entry_id if record else None


def would_be_record(standings: TrackStandings, entry: int, record: int | None) -> bool:
    """Whether the entry's runs in these standings would make it the record."""
    assert standings.comparison is not None
    rival = get_entry_name(record) if record not in (None, entry) else None
    try:
        return bool(standings.comparison.run_record_test(get_entry_name(entry), rival).is_record)
    except ResultsError:
        return False


# --- what came of it -------------------------------------------------------------------------------------------------


def find_undecided_entries(track: Track) -> list[Entry]:
    """Return the entries whose confirmation runs are all over, and that nothing has been decided about."""
    begun = Run.objects.filter(track=track, season=track.season_id, purpose=Run.Purpose.CONFIRMATION)
    entries = Entry.objects.filter(confirmation="", pk__in=begun.values("entry")).select_related("track__season")
    return [entry for entry in entries if all(is_over(run) for run in confirmation_runs(entry))]


def is_over(run: Run) -> bool:
    return run.is_over and not (run.state == Run.State.FAILED and run.cause == "infrastructure")


def conclude_confirmation(entry: Entry) -> None:
    """Decide about an entry whose confirmation runs are over, once; wait while the ladder cannot tell."""
    confirming = list(confirmation_runs(entry))
    if any(run.state != Run.State.FINISHED for run in confirming):
        store_decision(entry, "Not confirmed: not every confirmation run came to its end, and all that start count.")
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
            mark_disputed(entry, worse)
        elif would_be_record(standings, entry.pk, record):
            mark_record(entry, confirming, record)
        else:
            mark_replicated(entry)


def measure_excess_loss(ladder: Ladder, first: Sequence[ScoredRun], second: Sequence[ScoredRun]) -> float:
    """Return by how much the second runs are worse than the first ones, in standard errors of that difference.

    Losses are compared as they lie about the baseline's curve, so that a slightly different compute does not matter.
    """
    means = [float(np.mean([loss_over_baseline(ladder, run) for run in group])) for group in (first, second)]
    return (means[1] - means[0]) / (float(ladder.sigma) * math.sqrt(1 / len(first) + 1 / len(second)))


def loss_over_baseline(ladder: Ladder, run: ScoredRun) -> float:
    x = np.asarray(math.log(run.flops / ladder.full) if run.flops else 0.0)
    return run.bits_per_byte - float(ladder.loss_at(x))


def store_decision(entry: Entry, sentence: str) -> bool:
    """Write down what came of it; return whether this call did."""
    decided = Entry.objects.filter(pk=entry.pk, confirmation="").update(confirmation=sentence[:300])
    if decided:
        Run.objects.filter(entry=entry).update(revision=F("revision") + 1)
        request_recomputation(entry.track_id)
        Event.record(runs.SITE, entry, sentence)
    return decided == 1


def mark_disputed(entry: Entry, worse: float) -> None:
    """The first runs promised more than can be had elsewhere."""
    if store_decision(
        entry, f"Not confirmed: the confirmation is {worse:.1f} standard errors worse than the first runs."
    ):
        for run in get_full_budget_runs(entry).exclude(purpose=Run.Purpose.CONFIRMATION):
            sentence = f"Disputed: the confirmation on unrelated nodes came out {worse:.1f} standard errors worse."
            trust.transition_trust(run, Run.Trust.DISPUTED, actor=runs.SITE, sentence=sentence)


def mark_replicated(entry: Entry) -> None:
    if store_decision(entry, "Confirmed: fresh seeds on unrelated, trusted nodes agree with the first runs."):
        for run in get_full_budget_runs(entry):
            trust.transition_trust(
                run, Run.Trust.REPLICATED, actor=runs.SITE, sentence="Replicated on unrelated, trusted nodes."
            )


def mark_record(entry: Entry, confirming: Sequence[Run], former: int | None) -> None:
    """The confirmation runs, alone, break the record; the former holder's stay replicated."""
    if not store_decision(entry, RECORD_CONFIRMED):
        return
    for run in Run.objects.filter(entry=former, trust=Run.Trust.RECORD) if former not in (None, entry.pk) else ():
        sentence = f"The record went to {entry.title}."
        trust.transition_trust(run, Run.Trust.REPLICATED, actor=runs.SITE, sentence=sentence)
    for run in get_full_budget_runs(entry).exclude(purpose=Run.Purpose.CONFIRMATION):
        trust.transition_trust(
            run, Run.Trust.REPLICATED, actor=runs.SITE, sentence="Replicated on unrelated, trusted nodes."
        )
    for run in confirming:
        trust.transition_trust(run, Run.Trust.RECORD, actor=runs.SITE, sentence="A record.")
    bounties.claim_bounties(entry)
    delivery.notify_subscribers("record", entry.pk)


def get_full_budget_runs(entry: Entry) -> QuerySet[Run]:
    """Return the entry's reliable runs with the track's whole budget."""
    return Run.objects.scored(entry.track).filter(entry=entry, budget=entry.track.budget)
