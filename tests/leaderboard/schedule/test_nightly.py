from __future__ import annotations

from datetime import timedelta

import pytest

from leaderboard.models import Entry, Night, Run, Season, Track
from leaderboard.schedule import nightly
from leaderboard.submissions import intake
from leaderboard.tasks import nightly as nightly_task
from scheduler.models import Event, Job, Node
from tests.leaderboard.conftest import Repository, finish_run
from tests.support import scene
from tests.support.nights import MONDAY, TUESDAY, start_night

pytestmark = pytest.mark.sql


def test_first_night_queues_main_as_approved_entry(monday_night: Night, main_repository: Repository) -> None:
    run = monday_night.run
    assert run
    assert (run.purpose, run.state) == ("nightly", "queued")
    assert (run.entry.kind, run.entry.state, run.entry.hypothesis) == ("main", "approved", "First train")
    assert run.entry.title == f"main, {monday_night.date:%-d %b}"
    assert run.entry.sha == monday_night.sha == main_repository.git("rev-parse", "HEAD")
    assert run.entry.architecture == "gpt"
    assert run.job
    assert (run.job.priority, run.job.needs_sandbox) == (Job.Priority.NIGHTLY, False)
    assert "which was reviewed" in Event.objects.about(run.entry).last().sentence  # type: ignore[union-attr]
    assert run.entry.runs.count() == 1


def test_night_starts_once(monday_night: Night) -> None:
    assert nightly.start_nightly_runs(MONDAY + timedelta(hours=3)) == []
    assert Run.objects.count() == Night.objects.count() == 1


def test_night_after_new_commit_trains_it(finished_monday_night: Night, main_repository: Repository) -> None:
    sha = main_repository.commit("Faster", {"trainer/models/gpt.py": "class Model:\n    depth = 2\n"})
    night = start_night(TUESDAY)
    assert night.run
    assert (night.run.entry.sha, night.run.purpose) == (sha, "nightly")
    assert "main has moved" in night.sentence


def test_night_without_new_commit_trains_seed_of_baseline(finished_monday_night: Night, node: Node) -> None:
    first = start_night(TUESDAY)
    assert first.run
    assert (first.run.purpose, first.run.seed, first.run.entry) == ("ladder", 1, finished_monday_night.run.entry)  # type: ignore[union-attr]
    assert first.sentence.startswith("main has not moved: the night goes to seed 1 of the baseline.")
    finish_run(first.run, node)
    second = start_night(TUESDAY + timedelta(days=1))
    assert second.run
    assert second.run.seed == 2


def test_night_after_ladder_night_trains_new_commit(
    finished_monday_night: Night, main_repository: Repository, node: Node
) -> None:
    ladder_night = start_night(TUESDAY)
    assert ladder_night.run
    finish_run(ladder_night.run, node)
    sha = main_repository.commit("Moved at last")
    night = start_night(TUESDAY + timedelta(days=1))
    assert night.run
    assert (night.run.entry.sha, night.run.purpose) == (sha, "nightly")


def begin_second_season(night: Night, baseline: Entry) -> Season:
    """Move the night's track into a new season with the same dataset."""
    season = Season.objects.get(pk=night.track.season_id)
    Season.objects.update(active=False)
    season.pk, season.name, season.baseline = None, "Second", baseline
    season.save()
    Track.objects.update(season=season)
    return season


def test_first_night_of_new_season_trains_main_once(finished_monday_night: Night, node: Node) -> None:
    older = scene.create_entry(finished_monday_night.track, "main", kind=Entry.Kind.MAIN, sha="b" * 40)
    season = begin_second_season(finished_monday_night, older)
    night = start_night(TUESDAY)
    assert night.run
    assert (night.run.entry.sha, night.run.season) == (finished_monday_night.sha, season)
    finish_run(night.run, node)
    assert "main has not moved" in start_night(TUESDAY + timedelta(days=1)).sentence


def test_first_night_with_main_as_baseline_trains_no_new_run(finished_monday_night: Night) -> None:
    assert finished_monday_night.run
    begin_second_season(finished_monday_night, finished_monday_night.run.entry)
    assert "main has not moved" in start_night(TUESDAY).sentence


def test_night_with_unfinished_earlier_run_starts_none(monday_night: Night, main_repository: Repository) -> None:
    main_repository.commit("Moved")
    night = start_night(TUESDAY)
    assert night.run is None
    assert night.sentence == f"Run {monday_night.run_id} of an earlier night is still queued: no second one starts."
    assert Run.objects.count() == 1
    assert "Still queued on the night of 2026-03-03" in Event.objects.about(monday_night.run).last().sentence  # type: ignore[arg-type, union-attr]


def test_night_with_invalid_main_trains_baseline(finished_monday_night: Night, main_repository: Repository) -> None:
    main_repository.commit("Broken", {"trainer/models/__init__.py": "ARCHITECTURES = {\n"})
    night = start_night(TUESDAY)
    assert night.run
    assert night.run.purpose == "ladder"
    assert "main cannot be trained (trainer/models/__init__.py is not valid Python)" in night.sentence


def test_night_with_unreachable_main_trains_baseline(finished_monday_night: Night, main_repository: Repository) -> None:
    main_repository.path.rename(main_repository.path.with_name("gone"))
    night = start_night(TUESDAY)
    assert night.run
    assert night.run.purpose == "ladder"
    assert "There is no repository" in night.sentence


def test_first_night_of_season_pins_main_as_baseline(monday_night: Night) -> None:
    assert monday_night.run
    assert Season.objects.get().baseline == monday_night.run.entry
    assert Event.objects.filter(sentence=f"Baseline pinned: {monday_night.run.entry}.").count() == 1


def test_later_night_keeps_the_baseline(finished_monday_night: Night, main_repository: Repository) -> None:
    main_repository.commit("Faster", {"trainer/models/gpt.py": "class Model:\n    depth = 2\n"})
    start_night(TUESDAY)
    assert finished_monday_night.run
    assert Season.objects.get().baseline == finished_monday_night.run.entry


def test_night_without_baseline_or_new_commit_trains_nothing(monday_night: Night, node: Node) -> None:
    assert monday_night.run
    finish_run(monday_night.run, node)
    Season.objects.update(baseline=None)
    night = start_night(TUESDAY)
    assert night.run is None
    assert night.sentence.endswith("has no baseline yet: nothing is trained.")


def test_night_with_rejected_main_trains_nothing(track: Track, main_repository: Repository) -> None:
    entry = intake.submit_entry(str(main_repository.path), "main", "x", "gpt", track)
    Entry.objects.filter(pk=entry.pk).update(state=Entry.State.REJECTED, variant=Entry.MAIN_VARIANT)
    night = start_night(MONDAY)
    assert night.run is None
    assert "is rejected" in night.sentence


def test_night_of_track_that_is_not_nightly_does_not_start(track: Track) -> None:
    Track.objects.update(nightly=False)
    assert nightly.start_nightly_runs(MONDAY) == []


def test_nightly_task_starts_one_night(track: Track) -> None:
    nightly_task()
    nightly_task()
    assert Night.objects.count() == 1


def test_night_does_not_train_an_entry_that_someone_made_of_its_commit(
    track: Track, main_repository: Repository
) -> None:
    config = {"model": {"depth": 1}}
    other = intake.submit_entry(str(main_repository.path), "main", "Not main", "gpt", track, config=config)
    night = start_night(MONDAY)
    assert night.run
    assert (night.run.entry.kind, night.run.entry.config) == (Entry.Kind.MAIN, {})
    assert night.run.entry.sha == other.sha
    assert Season.objects.get(pk=track.season_id).baseline == night.run.entry
    other.refresh_from_db()
    assert other.state == Entry.State.PROPOSED
