"""Confirmation runs decide about records, and both change the trust in runs."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from leaderboard.models import Confirmation, Entry, Replay, Run, Season, Track
from leaderboard.rankings import confirmations, trust
from leaderboard.rankings.confirmations import ConfirmationError
from scheduler import transitions
from scheduler.models import Event, Job, Lease, Node
from scheduler.transitions import StateError
from tests.support import boards, scene

pytestmark = [pytest.mark.sql, pytest.mark.django_db]


@pytest.fixture
def track(full_track: Track) -> Track:
    return full_track


def create_candidate(track: Track, multiplier: float, title: str = "Better", seeds: int = 3, **fields: object) -> Entry:
    """Create an entry whose first runs have this compute multiplier, on a node of another owner."""
    author = User.objects.create(username=f"author of {title}")
    candidate = scene.create_entry(
        track, title, "smear", sha=f"{Entry.objects.count():040x}", requested_by=author, **fields
    )
    node = scene.create_node(f"node of {title}", owner=User.objects.create(username=f"sponsor of {title}"))
    for seed in range(100, 100 + seeds):
        lease = scene.create_lease(boards.create_scored_run(candidate, multiplier, seed=seed), node)
        Lease.objects.filter(pk=lease.pk).update(state=Lease.State.FINISHED)
    return candidate


def finish_confirmations(candidate: Entry, multiplier: float) -> list[Run]:
    """Queue the confirmation runs, finish them with this multiplier and process them."""
    runs = confirmations.queue_confirmation_runs(candidate, actor="site")
    for number, run in enumerate(runs):
        sample_run = boards.create_scored_run(candidate, multiplier, seed=500 + number)
        values = {"bits_per_byte": sample_run.bits_per_byte, "train_flops": sample_run.train_flops}
        sample_run.delete()
        Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED, trust=Run.Trust.SCORED, **values)
    confirmations.process_confirmations()
    return runs


def get_outcome(candidate: Entry) -> str:
    """Return the decision of the track's season, "" if there is none."""
    track = Track.objects.get(pk=candidate.track_id)
    decision = Confirmation.objects.filter(entry=candidate, season=track.season_id).first()
    return decision.outcome if decision else ""


def list_trusts(candidate: Entry) -> tuple[set[str], set[str]]:
    """Return the trust levels of the first runs and of the confirmation runs."""
    confirmation_runs = candidate.runs.filter(purpose=Run.Purpose.CONFIRMATION)
    return (
        set(candidate.runs.exclude(pk__in=confirmation_runs).values_list("trust", flat=True)),
        set(confirmation_runs.values_list("trust", flat=True)),
    )


def test_confirmation_runs_start_for_candidate_that_would_win_only(track: Track) -> None:
    candidate, level_entry = create_candidate(track, 1.3), create_candidate(track, 1.0, "Level")
    assert confirmations.find_candidates(track) == [candidate]
    confirmations.process_confirmations()
    confirmations.process_confirmations()
    runs = confirmations.filter_confirmation_runs(candidate)
    assert runs.count() == track.confirmations == 3
    assert not confirmations.filter_confirmation_runs(level_entry).exists()
    assert len({run.seed for run in runs} | {100, 101, 102}) == 6
    for run in runs:
        assert run.state == Run.State.QUEUED
        assert run.job.priority == Job.Priority.CONFIRMATION


def test_confirmation_jobs_exclude_nodes_and_owners_of_first_runs(track: Track) -> None:
    candidate = create_candidate(track, 1.3, author="tomás")
    namesake = User.objects.create(username="Tomás")
    run = confirmations.queue_confirmation_runs(candidate, actor="mara")[0]
    assert run.job.needs_trusted
    assert run.job.excluded_nodes == [Node.objects.get(name="node of Better").pk]
    names = ["author of Better", "sponsor of Better", namesake.username]
    assert run.job.excluded_owners == sorted(User.objects.filter(username__in=names).values_list("pk", flat=True))


def test_confirmation_that_would_not_count_does_not_start(track: Track) -> None:
    open_entry = create_candidate(track, 1.3, kind=Entry.Kind.OPEN)
    create_candidate(track, 1.3, "Provisional").runs.update(trust=Run.Trust.PROVISIONAL)
    assert confirmations.find_candidates(track) == []
    candidate = create_candidate(track, 1.3, "Without an independent node")
    Node.objects.exclude(name="node of Without an independent node").update(trusted=False)
    assert confirmations.find_candidates(track) == []
    assert confirmations.queue_confirmation_runs(candidate, actor="mara"), "a maintainer may queue them all the same"
    with pytest.raises(ConfirmationError, match="cannot hold a record"):
        confirmations.queue_confirmation_runs(open_entry, actor="mara")


@pytest.mark.parametrize(
    ("first", "confirmed", "outcome", "trusts"),
    [
        (1.3, 1.3, "record", ({"replicated"}, {"record"})),
        (1.01, 1.01, "replicated", ({"replicated"}, {"replicated"})),
        (1.5, 1.0, "worse", ({"disputed"}, {"scored"})),
    ],
)
def test_confirmation_decides_by_its_runs(
    track: Track, first: float, confirmed: float, outcome: str, trusts: tuple[set[str], set[str]]
) -> None:
    titles = {1.3: "Better", 1.01: "Level", 1.5: "Overtrained"}
    candidate = create_candidate(track, first, titles[first])
    finish_confirmations(candidate, confirmed)
    assert list_trusts(candidate) == trusts
    assert get_outcome(candidate) == outcome
    assert confirmations.find_record_holder(track) == (candidate.pk if outcome == "record" else None)


def test_record_of_the_season_before_is_decided_again(track: Track) -> None:
    candidate = create_candidate(track, 1.3)
    finish_confirmations(candidate, 1.3)
    former = track.season
    fields = {"baseline_id": former.baseline_id, "dataset_hash": former.dataset_hash, "limit_bytes": 1}
    season = Season.objects.create(name="Season 2", corpus=former.corpus, tokenizer=former.tokenizer, **fields)
    Run.objects.update(season=season)  # the same results, in the new season
    Run.objects.filter(purpose=Run.Purpose.CONFIRMATION).update(trust=Run.Trust.SCORED)
    Track.objects.update(season=season)
    confirmations.process_confirmations()
    assert set(candidate.confirmations.values_list("season", "outcome")) == {
        (former.pk, "record"),
        (season.pk, "record"),
    }


def test_confirmation_of_better_entry_takes_the_record_and_of_copy_does_not(track: Track) -> None:
    first, copy = create_candidate(track, 1.3, "First"), create_candidate(track, 1.3, "Copy")
    finish_confirmations(first, 1.3)
    assert copy not in confirmations.find_candidates(track)
    finish_confirmations(copy, 1.3)
    assert confirmations.find_record_holder(track) == first.pk
    assert list_trusts(copy)[1] == {"replicated"}
    second = create_candidate(track, 1.6, "Second")
    finish_confirmations(second, 1.6)
    assert confirmations.find_record_holder(track) == second.pk
    assert list_trusts(first) == ({"replicated"}, {"replicated"})
    run = first.runs.filter(purpose=Run.Purpose.CONFIRMATION).first()
    assert Event.objects.about(run).filter(sentence="The record went to Second.").exists()


def test_confirmation_with_cancelled_run_is_not_confirmed(track: Track) -> None:
    candidate = create_candidate(track, 1.3)
    cancelled_run = confirmations.queue_confirmation_runs(candidate, actor="site")[-1]
    Run.objects.filter(pk=cancelled_run.pk).update(state=Run.State.CANCELLED)
    Run.objects.filter(purpose=Run.Purpose.CONFIRMATION).exclude(pk=cancelled_run.pk).update(
        state=Run.State.FINISHED, trust=Run.Trust.SCORED, bits_per_byte=1.5, train_flops=1e13
    )
    confirmations.process_confirmations()
    assert get_outcome(candidate) == "incomplete"
    assert list_trusts(candidate) == ({"scored"}, {"scored", "provisional"})


def test_confirmation_after_infrastructure_failure_keeps_seed(track: Track) -> None:
    candidate = create_candidate(track, 1.3)
    failed_run, *_ = confirmations.queue_confirmation_runs(candidate, actor="site")
    for job in Job.objects.filter(run__purpose=Run.Purpose.CONFIRMATION):
        transitions.fail_job(job, "site", "infrastructure", "No node.")
    Run.objects.filter(state=Run.State.FAILED).update(finished_at=timezone.now() - timedelta(hours=2))
    confirmations.process_confirmations()
    seed = failed_run.seed
    failed_run.refresh_from_db()
    assert (failed_run.state, failed_run.seed, get_outcome(candidate)) == ("queued", seed, "")


def test_confirmation_is_decided_once(track: Track) -> None:
    candidate = create_candidate(track, 1.3)
    finish_confirmations(candidate, 1.3)
    assert get_outcome(candidate) == "record"
    Run.objects.filter(purpose=Run.Purpose.CONFIRMATION).update(bits_per_byte=9.0)
    confirmations.process_confirmations()
    assert get_outcome(candidate) == "record"
    assert confirmations.queue_confirmation_runs(candidate, actor="mara") == list(
        confirmations.filter_confirmation_runs(candidate)
    )
    assert Event.objects.about(candidate).filter(kind="record").count() == 1


def test_confirmation_that_cannot_go_on_does_not_stop_others(track: Track) -> None:
    withdrawn = create_candidate(track, 1.2, "Withdrawn")
    broken = confirmations.queue_confirmation_runs(withdrawn, actor="site")[0]
    long_ago = timezone.now() - timedelta(days=1)
    values = {"state": Run.State.FAILED, "cause": "infrastructure", "finished_at": long_ago, "job": None}
    Run.objects.filter(pk=broken.pk).update(**values)
    Entry.objects.filter(pk=withdrawn.pk).update(state=Entry.State.WITHDRAWN)
    without_nodes = create_candidate(track, 1.6, "Of a node that is gone")
    Node.objects.filter(name="node of Of a node that is gone").delete()
    other = create_candidate(track, 1.5, "Other")
    confirmations.process_confirmations()
    assert list(confirmations.filter_confirmation_runs(without_nodes)) == []
    assert confirmations.filter_confirmation_runs(other).exists()


T, E = Run.Trust, trust.TrustEvent


@pytest.fixture
def scored_run() -> Run:
    _, baseline = boards.create_ladder_track()
    return boards.create_scored_run(baseline, trust=T.PROVISIONAL)


@pytest.mark.parametrize(
    ("since", "event"),
    [
        (T.PROVISIONAL, E.REPLICATE),
        (T.PROVISIONAL, E.RECORD),
        (T.DISPUTED, E.RELY),
        (T.DISPUTED, E.REPLICATE),
        (T.RECORD, E.RELY),
        (T.SCORED, E.SETTLE),
    ],
)
def test_invalid_trust_transition_is_rejected(scored_run: Run, since: Run.Trust, event: trust.TrustEvent) -> None:
    Run.objects.filter(pk=scored_run.pk).update(trust=since)
    revision = Run.objects.get(pk=scored_run.pk).revision
    with pytest.raises(StateError):
        trust.apply_trust_event(scored_run, event, actor="site", message="Jumped.")
    assert (scored_run.trust, scored_run.revision) == (since, revision)
    assert not Event.objects.about(scored_run).exists()


@pytest.mark.parametrize("since", [T.PROVISIONAL, T.SCORED, T.REPLICATED, T.RECORD])
def test_disputed_run_is_settled_by_maintainer_only(scored_run: Run, since: Run.Trust) -> None:
    Run.objects.filter(pk=scored_run.pk).update(trust=since)
    trust.apply_trust_event(scored_run, trust.TrustEvent.DISPUTE, actor="node:b", message="Disputed: it differs.")
    assert not trust.mark_scored(scored_run)
    trust.settle_dispute(scored_run, "mara")
    assert scored_run.trust == T.SCORED
    with pytest.raises(StateError):
        trust.settle_dispute(scored_run, "mara")


def test_run_that_finished_meanwhile_is_marked_as_scored(scored_run: Run) -> None:
    Replay.objects.create(run=scored_run, end_step=10, state=Replay.State.AGREED)
    scored_run.state = Run.State.SCORING  # as it was read before its score was stored
    assert trust.mark_scored(scored_run)
    assert Run.objects.get(pk=scored_run.pk).trust == T.SCORED
