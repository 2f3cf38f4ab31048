from __future__ import annotations

from datetime import timedelta

from leaderboard.models import Entry, Night, Run, Track
from leaderboard.schedule import nightly
from leaderboard.tasks import nightly as nightly_task
from scheduler.models import Event, Job, Node
from tests.leaderboard.conftest import Repository, finish
from tests.support.nights import MONDAY, TUESDAY, tonight


def test_the_first_night_trains_main_without_asking(monday: Night, main: Repository) -> None:
    run = monday.run
    assert run
    assert (run.purpose, run.state) == ("nightly", "queued")
    assert (run.entry.kind, run.entry.state, run.entry.hypothesis) == ("main", "approved", "First train")
    assert run.entry.title == f"main, {monday.date:%-d %b}"
    assert run.entry.sha == monday.sha == main.git("rev-parse", "HEAD")
    assert run.entry.architecture == "gpt"
    assert run.job
    assert (run.job.priority, run.job.needs_sandbox) == (Job.Priority.NIGHTLY, False)
    assert "which was reviewed" in Event.objects.about(run.entry).last().sentence  # type: ignore[union-attr]
    assert run.entry.runs.count() == 1


def test_a_night_begins_once(monday: Night) -> None:
    assert nightly.start_nightly_runs(MONDAY + timedelta(hours=3)) == []
    assert Run.objects.count() == Night.objects.count() == 1


def test_when_main_has_moved_the_new_commit_is_trained(after_monday: Night, main: Repository) -> None:
    sha = main.commit("Faster", {"trainer/models/gpt.py": "class Model:\n    depth = 2\n"})
    night = tonight(TUESDAY)
    assert night.run
    assert (night.run.entry.sha, night.run.purpose) == (sha, "nightly")
    assert "main has moved" in night.sentence


def test_when_main_has_not_moved_the_night_goes_to_the_baseline(after_monday: Night, node: Node) -> None:
    first = tonight(TUESDAY)
    assert first.run
    assert (first.run.purpose, first.run.seed, first.run.entry) == ("ladder", 1, after_monday.run.entry)  # type: ignore[union-attr]
    assert first.sentence.startswith("main has not moved: the night goes to seed 1 of the baseline.")
    finish(first.run, node)
    second = tonight(TUESDAY + timedelta(days=1))
    assert second.run
    assert second.run.seed == 2


def test_after_a_ladder_night_main_is_still_not_new(after_monday: Night, main: Repository, node: Node) -> None:
    ladder = tonight(TUESDAY)
    assert ladder.run
    finish(ladder.run, node)
    sha = main.commit("Moved at last")
    night = tonight(TUESDAY + timedelta(days=1))
    assert night.run
    assert (night.run.entry.sha, night.run.purpose) == (sha, "nightly")


def test_while_last_night_still_runs_no_second_one_starts(monday: Night, main: Repository) -> None:
    main.commit("Moved")
    night = tonight(TUESDAY)
    assert night.run is None
    assert night.sentence == f"Run {monday.run_id} of an earlier night is still queued: no second one starts."
    assert Run.objects.count() == 1
    assert "Still queued on the night of 2026-03-03" in Event.objects.about(monday.run).last().sentence  # type: ignore[arg-type, union-attr]


def test_a_broken_main_is_said_and_the_night_is_not_lost(after_monday: Night, main: Repository) -> None:
    main.commit("Broken", {"trainer/models/__init__.py": "ARCHITECTURES = {\n"})
    night = tonight(TUESDAY)
    assert night.run
    assert night.run.purpose == "ladder"
    assert "main cannot be trained (trainer/models/__init__.py is not valid Python)" in night.sentence


def test_an_unreachable_main_is_said_and_the_night_is_not_lost(after_monday: Night, main: Repository) -> None:
    main.path.rename(main.path.with_name("gone"))
    night = tonight(TUESDAY)
    assert night.run
    assert night.run.purpose == "ladder"
    assert "There is no repository" in night.sentence


def test_without_a_baseline_a_quiet_night_trains_nothing(monday: Night, node: Node) -> None:
    assert monday.run
    finish(monday.run, node)
    night = tonight(TUESDAY)
    assert night.run is None
    assert night.sentence.endswith("has no baseline yet: nothing is trained.")


def test_a_rejected_head_of_main_does_not_run(track: Track, main: Repository) -> None:
    from leaderboard.submissions import intake

    entry = intake.submit_entry(str(main.path), "main", "x", "gpt", track)
    Entry.objects.filter(pk=entry.pk).update(state=Entry.State.REJECTED)
    night = tonight(MONDAY)
    assert night.run is None
    assert "is rejected" in night.sentence


def test_only_nightly_tracks_have_nights(track: Track) -> None:
    Track.objects.update(nightly=False)
    assert nightly.start_nightly_runs(MONDAY) == []


def test_the_task_is_the_function(track: Track) -> None:
    nightly_task()
    nightly_task()
    assert Night.objects.count() == 1
