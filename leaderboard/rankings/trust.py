"""How far a run's result can be relied on, apart from its state.

    provisional   trained on an unvetted node: shown, not compared
    scored        scored on a trusted node, and trained on nodes that are trusted, vetted (`scheduler.node_vetting`) or
                  confirmed by a replay of this run
    replicated    the entry's confirmation, on unrelated trusted nodes, agrees with it
    record        a confirmation run of the entry that holds the record
    disputed      a replay or the confirmation contradicts it: not compared until a maintainer settles it

All changes are conditional UPDATEs with an event; only a maintainer ends `disputed`.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import F, QuerySet, TextChoices

from leaderboard.models import Replay, Run
from leaderboard.recomputation import request_recomputation
from scheduler import node_vetting
from scheduler.models import SITE_ACTOR, Event, Job, Node
from scheduler.transitions import StateError

RELIABLE = (Run.Trust.SCORED, Run.Trust.REPLICATED, Run.Trust.RECORD)
"""Trust of runs that multipliers are computed from."""


class TrustEvent(TextChoices):
    RELY = "rely", "its training can be relied on"
    REPLICATE = "replicate", "its confirmation agrees, or another entry takes the record"
    RECORD = "record", "it confirms a record"
    DISPUTE = "dispute", "a replay or the confirmation contradicts it"
    SETTLE = "settle", "a maintainer settles the dispute"


TRUST_TRANSITIONS = {
    TrustEvent.RELY: ((Run.Trust.PROVISIONAL,), Run.Trust.SCORED),
    TrustEvent.REPLICATE: ((Run.Trust.SCORED, Run.Trust.RECORD), Run.Trust.REPLICATED),
    TrustEvent.RECORD: ((Run.Trust.SCORED, Run.Trust.REPLICATED), Run.Trust.RECORD),
    TrustEvent.DISPUTE: (tuple(Run.Trust), Run.Trust.DISPUTED),
    TrustEvent.SETTLE: ((Run.Trust.DISPUTED,), Run.Trust.SCORED),
}


@transaction.atomic
def apply_trust_event(run: Run, event: TrustEvent, *, actor: str, message: str) -> None:
    """Change a run's trust by an event and record the message. Raises StateError where its trust does not allow it."""
    since, to = TRUST_TRANSITIONS[event]
    if not Run.objects.filter(pk=run.pk, trust__in=since).update(trust=to, revision=F("revision") + 1):
        run.refresh_from_db(fields=["trust"])
        raise StateError(f"The result of run {run.pk} is {run.trust}. So this is not possible: {event.label}.")
    run.refresh_from_db(fields=["trust", "revision"])
    request_recomputation(run.track_id)
    if message:
        Event.record(actor, run, message)


def settle_dispute(run: Run, actor: str) -> None:
    message = "The dispute is settled: the result counts again."
    apply_trust_event(run, TrustEvent.SETTLE, actor=actor, message=message)


# --- provisional or scored -------------------------------------------------------------------------------------------


def find_training_nodes(job: Job) -> QuerySet[Node]:
    return Node.objects.filter(leases__checkpoints__job=job).distinct()


def is_proven(run: Run) -> bool:
    if run.replays.filter(state=Replay.State.AGREED).exists():
        return True
    return run.job is not None and all(node_vetting.is_result_accepted(node) for node in find_training_nodes(run.job))


@transaction.atomic
def mark_scored(run: Run) -> bool:
    """Let a run that has its verdict count, if its training can be relied on; else say what it waits for.

    No event where it counts: its verdict, or the replay's, says it. The lock lets the later one of a score and a replay
    that end at the same time see the other.
    """
    run.refresh_from_db(fields=["state", "trust"], from_queryset=Run.objects.select_for_update(no_key=True))
    if run.state != Run.State.FINISHED or run.trust != Run.Trust.PROVISIONAL:
        return False
    if is_proven(run):
        apply_trust_event(run, TrustEvent.RELY, actor=SITE_ACTOR, message="")
        return True
    Event.record(
        SITE_ACTOR, run, f"Provisional: {run.node_name} is new, so it counts when a stretch of it was replayed."
    )
    return False
