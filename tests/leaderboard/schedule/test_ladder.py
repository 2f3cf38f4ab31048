"""The ladder fills itself: what is lacking is queued behind everything else, smallest rungs first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.models import Entry, Run, Season, Track
from leaderboard.schedule import ladder
from leaderboard.submissions import intake
from leaderboard.tasks import fill_ladders
from scheduler.models import Job, Node
from tests.leaderboard.conftest import Repository, finish

RUNGS = {"rungs": [0.25, 0.5, 1, 2], "seeds": 2}


@pytest.fixture
def baseline(main: Repository, track: Track) -> Entry:
    entry = intake.submit_entry(str(main.path), "main", "main", "gpt", track, kind=Entry.Kind.MAIN)
    intake.approve_entry(entry, entry.sha, None)
    track.season.baseline, track.ladder, track.seeds = entry, RUNGS, 2
    track.season.save()
    track.save()
    return entry


def arrive(track: Track, node: Node) -> None:
    """Fill and run the ladder until nothing of it waits."""
    while ladder.fill_ladder(track) or Run.objects.filter(track=track, state=Run.State.QUEUED).exists():
        for run in Run.objects.filter(track=track, state=Run.State.QUEUED):
            finish(run, node)


def shape(track: Track) -> list[tuple[str, int]]:
    return sorted(Run.objects.filter(track=track, purpose="ladder").values_list("budget", "seed"))


def test_it_begins_with_the_smallest_rungs_behind_everything_else(baseline: Entry, track: Track) -> None:
    assert ladder.fill_ladder(track) == ladder.WAITING_AT_ONCE
    runs = Run.objects.filter(purpose="ladder").order_by("pk").select_related("job", "track")
    assert [(run.budget, run.seed, run.state) for run in runs] == [
        ("5steps", 1, "queued"),
        ("5steps", 2, "queued"),
        ("10steps", 1, "queued"),
    ]
    assert {run.job.priority for run in runs if run.job} == {Job.Priority.LADDER}
    assert [run.job.expected_seconds for run in runs if run.job] == [2.5, 2.5, 5.0]


def test_what_waits_is_not_queued_again(baseline: Entry, track: Track) -> None:
    ladder.fill_ladder(track)
    assert ladder.fill_ladder(track) == 0
    assert len(shape(track)) == ladder.WAITING_AT_ONCE


def test_it_fills_to_seeds_times_rungs_and_no_further(baseline: Entry, track: Track, node: Node) -> None:
    arrive(track, node)
    assert shape(track) == [(f"{steps}steps", seed) for steps in (10, 20, 40) for seed in (1, 2)] + [
        ("5steps", 1),
        ("5steps", 2),
    ]
    assert ladder.get_ladder_progress(track) == ladder.LadderProgress(8, 8)
    assert ladder.fill_ladder(track) == 0


def test_another_run_of_the_baseline_is_a_seed_of_its_rung(baseline: Entry, track: Track, node: Node) -> None:
    from leaderboard.runs import make_run

    make_run(baseline, track)  # a nightly run of it, with a drawn seed
    arrive(track, node)
    assert [budget for budget, _ in shape(track)].count("20steps") == 1


def test_what_the_infrastructure_broke_goes_on_with_its_seed_after_a_rest(
    baseline: Entry, track: Track, node: Node
) -> None:
    ladder.fill_ladder(track)
    broken = Run.objects.filter(purpose="ladder").earliest("pk")
    Job.objects.filter(pk=broken.job_id).update(state=Job.State.FAILED)
    Run.objects.filter(pk=broken.pk).update(state="failed", cause="infrastructure", finished_at=timezone.now())
    ladder.fill_ladder(track)
    broken.refresh_from_db()
    assert broken.state == "failed"

    Run.objects.filter(pk=broken.pk).update(finished_at=timezone.now() - ladder.RETRY_AFTER - timedelta(seconds=1))
    ladder.fill_ladder(track)
    broken.refresh_from_db()
    assert broken.state == "queued"
    assert Run.objects.filter(budget=broken.budget, purpose="ladder").count() == 2


@pytest.mark.parametrize("end", [{"state": "failed", "cause": "model"}, {"state": "cancelled"}])
def test_what_the_model_or_a_maintainer_ended_keeps_its_place(
    baseline: Entry, track: Track, node: Node, end: dict[str, str]
) -> None:
    ladder.fill_ladder(track)
    ended = Run.objects.filter(purpose="ladder").earliest("pk")
    Job.objects.filter(pk=ended.job_id).update(state=Job.State.FAILED)
    Run.objects.filter(pk=ended.pk).update(**end, finished_at=timezone.now() - timedelta(days=1))
    arrive(track, node)
    assert Run.objects.filter(purpose="ladder", budget=ended.budget).count() == 2
    assert ladder.get_ladder_progress(track) == ladder.LadderProgress(7, 8)


def test_once_it_is_full_entries_get_their_further_seeds(
    baseline: Entry, idea: Entry, track: Track, node: Node
) -> None:
    (first,) = intake.approve_entry(idea, idea.sha, None)
    finish(first, node)
    ladder.fill_ladder(track)
    assert idea.runs.count() == 1
    arrive(track, node)
    assert idea.runs.count() == track.seeds == 2
    assert len(set(idea.runs.values_list("seed", flat=True))) == 2
    assert Job.objects.filter(run__entry=idea).latest("pk").priority == Job.Priority.LADDER


def test_an_entry_whose_model_failed_gets_no_further_seeds(
    baseline: Entry, idea: Entry, track: Track, node: Node
) -> None:
    intake.approve_entry(idea, idea.sha, None)
    idea.runs.update(state="failed", cause="model")
    arrive(track, node)
    assert idea.runs.count() == 1


@pytest.mark.parametrize("change", ["baseline", "dataset"])
def test_a_new_season_makes_it_anew_and_leaves_the_old_one_alone(
    baseline: Entry, track: Track, node: Node, main: Repository, change: str
) -> None:
    arrive(track, node)
    old, ran = track.season, shape(track)
    entry = baseline
    if change == "baseline":
        sha = main.commit("Faster", {"trainer/models/gpt.py": "x = 1\n"})
        entry = intake.submit_entry(str(main.path), sha, "main", "gpt", track, kind=Entry.Kind.MAIN)
        intake.approve_entry(entry, sha, None)
    track.season = Season.objects.create(
        name="Season 1", corpus="python-library", tokenizer="bpe:512", dataset_hash="e" * 64, baseline=entry
    )
    track.save()
    assert ladder.get_ladder_progress(track) == ladder.LadderProgress(0, 8)
    arrive(track, node)
    assert ladder.get_ladder_progress(track) == ladder.LadderProgress(8, 8)
    assert Run.objects.filter(season=old, purpose="ladder").count() == len(ran)
    assert Run.objects.filter(season=track.season, purpose="ladder").count() == 8


@pytest.mark.parametrize("without", ["ladder", "baseline", "dataset", "season"])
def test_without_what_it_needs_nothing_is_queued(baseline: Entry, track: Track, without: str) -> None:
    Track.objects.update(ladder={}) if without == "ladder" else None
    Season.objects.update(
        **{"baseline": {"baseline": None}, "dataset": {"dataset_hash": ""}, "season": {"active": False}}.get(
            without, {"active": True}
        )
    )
    fill_ladders()
    assert not Run.objects.filter(purpose="ladder").exists()


def test_the_sandbox_gives_a_larger_rung_more_time(track: Track) -> None:
    track.ladder = RUNGS
    assert track.training_limits(track.part("40steps")).wall_seconds == 2 * track.training_limits().wall_seconds
    assert track.training_limits(track.part("5steps")).wall_seconds == track.training_limits().wall_seconds


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rungs": [0.5, 1]}, "it is"),
        ({"rungs": [0.5, 2], "seeds": 3}, "1 .the whole budget. is one of them"),
        ({"rungs": [1, 1], "seeds": 3}, "each rung comes once"),
        ({"rungs": [1, "2"], "seeds": 3}, "rungs are parts of the budget"),
        ({"rungs": [1, 0.001], "seeds": 3}, "from 1/64 to 64"),
        ({"rungs": [1], "seeds": 0}, "seeds is a whole number"),
        ({"rungs": [1], "seeds": True}, "seeds is a whole number"),
        ({"rungs": [0.51, 0.52, 1], "seeds": 1}, "too small for rungs so near"),
        ([], "it is"),
    ],
)
def test_the_admin_refuses_a_ladder_that_cannot_be_climbed(track: Track, wrong: Any, sentence: str) -> None:
    track.ladder = wrong
    with pytest.raises(ValidationError, match=sentence):
        track.clean()


BUDGETS = st.lists(st.sampled_from(["a", "b", "c", "d"]), unique=True, min_size=1)


@given(st.integers(1, 5), BUDGETS, st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), st.integers(0, 8)))
def test_what_is_missing_fills_every_rung_and_overfills_none(
    seeds: int, budgets: list[str], there: dict[str, int]
) -> None:
    lacking = list(ladder.list_missing_budgets(seeds, budgets, there))
    assert lacking == sorted(lacking, key=budgets.index)
    for budget in budgets:
        assert max(there.get(budget, 0), seeds) == there.get(budget, 0) + lacking.count(budget)


@given(st.sets(st.integers(0, 30)))
def test_a_free_seed_was_never_used(used: set[int]) -> None:
    seeds = ladder.iterate_free_seeds(used)
    first, second = next(seeds), next(seeds)
    assert 1 <= first < second
    assert not {first, second} & used
    assert set(range(1, first)) <= used
