"""A candidate is run again with fresh seeds, elsewhere, and only that decides about a record."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from leaderboard.models import Entry, Run, Track
from leaderboard.rankings import confirmations
from leaderboard.rankings.confirmations import ConfirmationError
from scheduler.models import Event, Job, Lease, Node
from tests.support import boards, scene

pytestmark = pytest.mark.django_db


@pytest.fixture
def track(full_track: Track) -> Track:
    return full_track


def entry(track: Track, multiplier: float, title: str = "Better", seeds: int = 3, **fields: object) -> Entry:
    """Return an entry whose first runs made so much of their compute, on a node of their own."""
    author = User.objects.create(username=f"author of {title}")
    made = scene.entry(track, title, "smear", sha=f"{Entry.objects.count():040x}", requested_by=author, **fields)
    node = scene.node(f"node of {title}", owner=User.objects.create(username=f"sponsor of {title}"))
    for seed in range(100, 100 + seeds):
        held = scene.lease(boards.judged(made, multiplier, seed=seed), node)
        Lease.objects.filter(pk=held.pk).update(state=Lease.State.FINISHED)
    return made


def confirm(made: Entry, multiplier: float) -> list[Run]:
    """Let its confirmation runs come out like this."""
    begun = confirmations.queue_confirmation_runs(made, actor="site")
    for number, run in enumerate(begun):
        model = boards.judged(made, multiplier, seed=500 + number)
        values = {"bits_per_byte": model.bits_per_byte, "train_flops": model.train_flops}
        model.delete()
        Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED, trust=Run.Trust.SCORED, **values)
    confirmations.process_confirmations()
    made.refresh_from_db()
    return begun


def trusts(made: Entry) -> tuple[set[str], set[str]]:
    """Trust of its first runs, and of its confirmation runs."""
    confirming = made.runs.filter(purpose=Run.Purpose.CONFIRMATION)
    return (
        set(made.runs.exclude(pk__in=confirming).values_list("trust", flat=True)),
        set(confirming.values_list("trust", flat=True)),
    )


def test_who_would_win_is_confirmed_and_nobody_else(track: Track) -> None:
    better, level = entry(track, 1.3), entry(track, 1.0, "Level")
    assert confirmations.find_candidates(track) == [better]
    confirmations.process_confirmations()
    confirmations.process_confirmations()
    begun = confirmations.confirmation_runs(better)
    assert begun.count() == track.confirmations == 3
    assert not confirmations.confirmation_runs(level).exists()
    assert len({run.seed for run in begun} | {100, 101, 102}) == 6
    for run in begun:
        assert run.state == Run.State.QUEUED
        assert run.job
        assert run.job.priority == Job.Priority.CONFIRMATION


def test_its_jobs_are_for_trusted_nodes_that_have_nothing_to_do_with_it(track: Track) -> None:
    better = entry(track, 1.3, author="tomás")
    namesake = User.objects.create(username="Tomás")
    run = confirmations.queue_confirmation_runs(better, actor="mara")[0]
    assert run.job
    assert run.job.needs_trusted
    assert run.job.excluded_nodes == [Node.objects.get(name="node of Better").pk]
    people = User.objects.filter(username__in=["author of Better", "sponsor of Better"]) | User.objects.filter(
        pk=namesake.pk
    )
    assert run.job.excluded_owners == sorted(people.values_list("pk", flat=True))


def test_a_candidate_waits_where_nobody_could_confirm_it(track: Track) -> None:
    better = entry(track, 1.3)
    Node.objects.filter(name="unrelated").update(trusted=False)
    assert confirmations.find_candidates(track) == []
    assert confirmations.queue_confirmation_runs(better, actor="mara"), "a maintainer may ask all the same"


def test_an_open_entry_holds_no_record(track: Track) -> None:
    better = entry(track, 1.3, kind=Entry.Kind.OPEN)
    assert confirmations.find_candidates(track) == []
    with pytest.raises(ConfirmationError, match="cannot hold a record"):
        confirmations.queue_confirmation_runs(better, actor="mara")


def test_what_nobody_has_vouched_for_makes_no_candidate(track: Track) -> None:
    better = entry(track, 1.3)
    better.runs.update(trust=Run.Trust.PROVISIONAL)
    assert confirmations.find_candidates(track) == []


def test_confirmation_runs_that_win_are_a_record(track: Track) -> None:
    better = entry(track, 1.3)
    confirm(better, 1.3)
    assert trusts(better) == ({"replicated"}, {"record"})
    assert better.confirmation.startswith("A record")
    assert confirmations.find_record_holder(track) == better.pk


def test_confirmation_runs_that_agree_and_do_not_win_replicate(track: Track) -> None:
    level = entry(track, 1.01, "Level")
    confirm(level, 1.01)
    assert trusts(level) == ({"replicated"}, {"replicated"})
    assert level.confirmation.startswith("Confirmed")
    assert confirmations.find_record_holder(track) is None


def test_first_runs_that_promised_too_much_are_disputed(track: Track) -> None:
    lucky = entry(track, 1.5, "Overtrained")
    confirm(lucky, 1.0)
    assert trusts(lucky) == ({"disputed"}, {"scored"})
    assert "standard errors worse" in lucky.confirmation


def test_a_better_one_takes_the_record(track: Track) -> None:
    first, second = entry(track, 1.3, "First"), entry(track, 1.6, "Second")
    confirm(first, 1.3)
    confirm(second, 1.6)
    assert confirmations.find_record_holder(track) == second.pk
    assert trusts(first) == ({"replicated"}, {"replicated"})
    run = first.runs.filter(purpose=Run.Purpose.CONFIRMATION).first()
    assert run
    assert Event.objects.about(run).filter(sentence="The record went to Second.").exists()


def test_a_copy_of_the_record_only_ties_with_it(track: Track) -> None:
    first, copy = entry(track, 1.3, "First"), entry(track, 1.3, "Copy")
    confirm(first, 1.3)
    assert copy not in confirmations.find_candidates(track)
    confirm(copy, 1.3)
    assert confirmations.find_record_holder(track) == first.pk
    assert trusts(copy)[1] == {"replicated"}


def test_all_that_start_count(track: Track) -> None:
    better = entry(track, 1.3)
    stopped = confirmations.queue_confirmation_runs(better, actor="site")[-1]
    Run.objects.filter(pk=stopped.pk).update(state=Run.State.CANCELLED)
    Run.objects.filter(purpose=Run.Purpose.CONFIRMATION).exclude(pk=stopped.pk).update(
        state=Run.State.FINISHED, trust=Run.Trust.SCORED, bits_per_byte=1.5, train_flops=1e13
    )
    confirmations.process_confirmations()
    better.refresh_from_db()
    assert better.confirmation.startswith("Not confirmed: not every confirmation run")
    assert trusts(better) == ({"scored"}, {"scored", "provisional"})


def test_what_the_infrastructure_broke_goes_on_with_its_seed(track: Track) -> None:
    better = entry(track, 1.3)
    broken, *_ = confirmations.queue_confirmation_runs(better, actor="site")
    long_ago = timezone.now() - timedelta(hours=2)
    Run.objects.filter(purpose=Run.Purpose.CONFIRMATION).update(
        state=Run.State.FAILED, cause="infrastructure", finished_at=long_ago
    )
    Job.objects.filter(run__purpose=Run.Purpose.CONFIRMATION).update(state=Job.State.FAILED)
    confirmations.process_confirmations()
    better.refresh_from_db()
    seed = broken.seed
    broken.refresh_from_db()
    assert (broken.state, broken.seed, better.confirmation) == ("queued", seed, "")


def test_it_is_decided_once(track: Track) -> None:
    better = entry(track, 1.3)
    confirm(better, 1.3)
    said = better.confirmation
    Run.objects.filter(purpose=Run.Purpose.CONFIRMATION).update(bits_per_byte=9.0)
    confirmations.process_confirmations()
    better.refresh_from_db()
    assert better.confirmation == said
    assert confirmations.queue_confirmation_runs(better, actor="mara") == list(confirmations.confirmation_runs(better))
    assert Event.objects.about(better).filter(sentence=said).count() == 1
