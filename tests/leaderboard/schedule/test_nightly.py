"""Nights: what each starts, late ones, moved clocks, and eight in a row with a failure of each kind."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
import time_machine
from django.utils import timezone
from django_celery_beat.models import CrontabSchedule, PeriodicTask

from dailytrain import schedule
from leaderboard import runs
from leaderboard.models import Entry, Night, Run, Season, Track
from leaderboard.schedule import nightly
from leaderboard.schedule.due_times import NIGHTLY
from leaderboard.submissions import intake
from leaderboard.tasks import fill_ladders
from scheduler import leases, transitions
from scheduler.models import Event, Job, Lease, Node
from tests.leaderboard.conftest import DICTIONARY, Repository, create_checkpoint, finish_run
from tests.support.nights import MONDAY, TUESDAY, start_night
from tests.support.node_jobs import end_lease, finish_job, lease_job, requeue_job

pytestmark = pytest.mark.sql

DAY = timedelta(days=1)


def test_first_night_queues_main_as_approved_entry(monday_night: Night, main_repository: Repository) -> None:
    run = monday_night.run
    assert (run.purpose, run.state) == ("nightly", "queued")
    assert (run.entry.kind, run.entry.state, run.entry.hypothesis) == ("main", "approved", "First train")
    assert run.entry.title == f"main, {monday_night.date:%-d %b}"
    assert run.entry.sha == monday_night.sha == main_repository.git("rev-parse", "HEAD")
    assert run.entry.architecture == "gpt"
    assert (run.job.priority, run.job.needs_sandbox) == (Job.Priority.NIGHTLY, False)
    assert "which was reviewed" in Event.objects.about(run.entry).last().sentence  # type: ignore[union-attr]
    assert run.entry.runs.count() == 1


def test_night_without_valid_new_commit_trains_seed_of_baseline(
    finished_monday_night: Night, main_repository: Repository, node: Node
) -> None:
    first = start_night(TUESDAY)
    assert (first.run.purpose, first.run.seed, first.run.entry) == ("ladder", 1, finished_monday_night.run.entry)  # type: ignore[union-attr]
    assert first.sentence.startswith("main has not moved: the night goes to seed 1 of the baseline.")
    finish_run(first.run, node)
    second = start_night(TUESDAY + DAY)
    assert second.run.seed == 2
    finish_run(second.run, node)
    main_repository.commit("Broken", {"trainer/models/__init__.py": "ARCHITECTURES = {\n"})
    broken = start_night(TUESDAY + 2 * DAY)
    assert broken.run.purpose == "ladder"
    assert "main cannot be trained (trainer/models/__init__.py is not valid Python)" in broken.sentence
    finish_run(broken.run, node)
    sha = main_repository.commit("Moved at last", {"trainer/models/__init__.py": DICTIONARY})
    moved = start_night(TUESDAY + 3 * DAY)
    assert (moved.run.entry.sha, moved.run.purpose) == (sha, "nightly")
    finish_run(moved.run, node)
    main_repository.path.rename(main_repository.path.with_name("gone"))
    assert "There is no repository" in start_night(TUESDAY + 4 * DAY).sentence


def begin_training(night: Night, node: Node) -> Run:
    """Lease the night's run to a node."""
    lease_job(night.run.job, node)
    return Run.objects.get(pk=night.run.pk)


def test_late_night_starts_newest_main_when_earlier_run_ends(
    monday_night: Night, main_repository: Repository, node: Node
) -> None:
    earlier = begin_training(monday_night, node)
    main_repository.commit("Moved")
    night = start_night(TUESDAY)
    assert (night.run, night.is_waiting) == (None, True)
    assert night.sentence == f"Run {earlier.pk} of an earlier night is still training: it starts after that one."
    assert "Still training on the night of 2026-03-03" in Event.objects.about(earlier).last().sentence  # type: ignore[union-attr]
    newest = main_repository.commit("Moved again")
    start_night(TUESDAY + DAY)
    assert nightly.start_late_nights(TUESDAY + DAY) == []
    assert Run.objects.count() == 1, "never two nights at once on a track"

    finish_run(earlier, node)
    (late,) = nightly.start_late_nights(TUESDAY + DAY + timedelta(minutes=40))
    assert late.date == (TUESDAY + DAY).date()
    assert late.run.entry.sha == newest
    assert Night.objects.get(date=TUESDAY.date()).sentence.endswith("trains the newest main instead.")
    assert not Night.objects.filter(is_waiting=True).exists()
    assert nightly.start_late_nights(TUESDAY + 2 * DAY) == []


def test_night_starts_late_in_the_scoring_time_of_the_earlier_run(
    monday_night: Night, main_repository: Repository, node: Node
) -> None:
    earlier = begin_training(monday_night, node)
    main_repository.commit("Moved")
    start_night(TUESDAY)
    create_checkpoint(earlier.job, 20)
    finish_job(earlier.job, {"step": 20})
    (late,) = nightly.start_late_nights(TUESDAY)
    assert late.run.state == Run.State.QUEUED


def test_night_replaces_run_that_no_node_has_begun(finished_monday_night: Night, main_repository: Repository) -> None:
    main_repository.commit("Moved")
    first = start_night(TUESDAY).run
    main_repository.commit("Moved again")
    second = start_night(TUESDAY + DAY)
    first.refresh_from_db()
    assert (first.state, second.run.state) == ("cancelled", "queued")
    assert f"Run {first.pk} of an earlier night, which no node had begun, gives way" in second.sentence
    job = Job.objects.get(state=Job.State.QUEUED, priority=Job.Priority.NIGHTLY)
    assert (job.run, job.queued_at) == (second.run, first.job.queued_at), "it keeps the place in the queue"


def test_night_is_not_held_back_by_node_that_never_gets_on(
    finished_monday_night: Night, main_repository: Repository, node: Node
) -> None:
    main_repository.commit("Moved")
    with time_machine.travel(TUESDAY, tick=False) as clock:
        stuck = begin_training(start_night(TUESDAY), node)
        main_repository.commit("Moved again")
        clock.shift(nightly.STALLED_AFTER + timedelta(minutes=1))
        create_checkpoint(stuck.job, 5)
        assert start_night(timezone.now()).is_waiting, "it has just sent a checkpoint"
        clock.shift(nightly.STALLED_AFTER + timedelta(minutes=1))
        (late,) = nightly.start_late_nights(timezone.now())
    assert late.run
    assert late.run != stuck


def test_night_without_new_commit_belongs_to_ladder_while_runs_are_missing(
    finished_monday_night: Night, node: Node
) -> None:
    track = finished_monday_night.track
    track.ladder = {"rungs": [0.5, 1], "seeds": 1}
    track.save()
    night = start_night(TUESDAY)
    assert (night.run, night.is_waiting) == (None, False)
    assert night.sentence == "main has not moved: the night goes to the ladder. 1 of its 2 runs are done."
    fill_ladders()
    (rung,) = Run.objects.filter(purpose="ladder")
    assert rung.budget == "10steps"
    finish_run(rung, node)
    seed = start_night(TUESDAY + DAY).run
    assert (seed.budget, seed.purpose) == (track.budget, "ladder")
    same = start_night(TUESDAY + 2 * DAY)
    assert same.run == seed, "one seed at a time"


def test_night_goes_on_with_run_that_infrastructure_failed(monday_night: Night, node: Node) -> None:
    failed = begin_training(monday_night, node)
    transitions.fail_job(failed.job, "site", "infrastructure", "Five nodes were lost.")
    night = start_night(TUESDAY)
    assert (night.run, night.run and night.run.state) == (failed, "queued")
    assert "it goes on" in night.sentence


def set_zone(hour: int, minute: int, zone: str) -> None:
    schedule.install()
    crontab = CrontabSchedule.objects.create(hour=str(hour), minute=str(minute), timezone=zone)
    PeriodicTask.objects.filter(task=NIGHTLY).update(crontab=crontab)


@pytest.mark.parametrize(("hour", "minute"), [(1, 0), (2, 30), (23, 50)])
@pytest.mark.parametrize("first", [date(2026, 3, 28), date(2026, 10, 24)], ids=["spring", "autumn"])
def test_each_local_date_has_one_night_when_clocks_change(track: Track, hour: int, minute: int, first: date) -> None:
    set_zone(hour, minute, "Europe/Berlin")
    zone = ZoneInfo("Europe/Berlin")
    dates = [first + timedelta(days=number) for number in range(3)]
    for day in dates:
        due = datetime.combine(day, time(hour, minute), zone)
        for moment in sorted(due.replace(fold=fold).astimezone(UTC) for fold in (0, 1)):
            nightly.start_nightly_runs(moment + timedelta(minutes=20))  # beat was busy
    assert list(Night.objects.order_by("date").values_list("date", flat=True)) == dates


def test_night_is_not_deleted_when_its_schedule_moves_to_a_later_hour(
    track: Track, main_repository: Repository, node: Node
) -> None:
    schedule.install()
    with time_machine.travel(MONDAY, tick=False) as clock:
        begin_training(start_night(timezone.now()), node)
        clock.move_to(TUESDAY)
        main_repository.commit("Moved")
        start_night(timezone.now())
        set_zone(23, 0, "UTC")
        clock.shift(timedelta(minutes=1))
        nightly.start_late_nights(timezone.now())
    assert list(Night.objects.order_by("date").values_list("date", flat=True)) == [MONDAY.date(), TUESDAY.date()]


def test_clock_that_jumps_over_the_hour_and_back_loses_no_night(
    track: Track, main_repository: Repository, node: Node
) -> None:
    noon = MONDAY - timedelta(hours=8)
    (ahead,) = nightly.start_nightly_runs(noon + DAY + timedelta(hours=9))
    assert ahead.date == TUESDAY.date()
    assert nightly.start_nightly_runs(MONDAY) == []
    assert Night.objects.get().date == MONDAY.date(), "it was Monday's night, begun early"
    finish_run(ahead.run, node)
    main_repository.commit("Moved")
    tuesday = start_night(TUESDAY)
    assert tuesday.run.purpose == "nightly"
    assert Night.objects.count() == 2


def test_exception_of_one_track_stops_no_other_and_is_tried_again(
    track: Track, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Track.objects.get(pk=track.pk)
    second.pk, second.slug, second.is_default, second.position = None, "second", False, 1
    second.save()
    claim_night = nightly.claim_night

    def fail_on_first(claimed: Track, day: date, sha: str, is_late: bool) -> Night | None:
        if claimed == track:
            raise RuntimeError("of this track")
        return claim_night(claimed, day, sha, is_late)

    monkeypatch.setattr(nightly, "claim_night", fail_on_first)
    (night,) = nightly.start_nightly_runs(MONDAY)
    assert night.track == second
    assert nightly.start_late_nights(MONDAY) == nightly.start_late_nights(MONDAY) == []
    failures = Event.objects.about(track).filter(sentence__contains="the site failed (RuntimeError)")
    assert failures.count() == 1
    monkeypatch.undo()
    (late,) = nightly.start_late_nights(MONDAY)
    assert (late.track, late.run is not None) == (track, True)


def test_night_with_rejected_main_trains_nothing(track: Track, main_repository: Repository) -> None:
    entry = intake.submit_entry(str(main_repository.path), "main", "x", "gpt", track)
    Entry.objects.filter(pk=entry.pk).update(state=Entry.State.REJECTED, variant=Entry.MAIN_VARIANT)
    night = start_night(MONDAY)
    assert night.run is None
    assert "is rejected" in night.sentence


def test_night_does_not_train_an_entry_that_someone_made_of_its_commit(
    track: Track, main_repository: Repository
) -> None:
    config = {"model": {"depth": 1}}
    other = intake.submit_entry(str(main_repository.path), "main", "Not main", "gpt", track, config=config)
    night = start_night(MONDAY)
    assert (night.run.entry.kind, night.run.entry.config) == (Entry.Kind.MAIN, {})
    assert night.run.entry.sha == other.sha
    assert Season.objects.get(pk=track.season_id).baseline == night.run.entry
    other.refresh_from_db()
    assert other.state == Entry.State.PROPOSED


FAILURES = ("infrastructure", "model", "cancelled", "held", "silent", "without a checkpoint", "retried")


def end_badly(run: Run, lease: Lease, failure: str) -> None:
    """End a night's work; "retried": it is given up, a maintainer retries, and no node takes the job."""
    if failure in ("infrastructure", "retried"):
        Job.objects.filter(pk=lease.job_id).update(failures=99)
        requeue_job(lease)
        if failure == "retried":
            runs.retry_run(Run.objects.get(pk=run.pk), actor="mara")
    elif failure == "model":
        end_lease(lease, "failed", cause="model", reason="The loss is not a number.")
    elif failure == "silent":
        leases.lose_lease(lease, "It fell silent.")
    elif failure == "without a checkpoint":
        end_lease(lease, "done", result={"step": 20})
    else:
        if failure == "held":
            transitions.hold_job(lease.job, "mara", "Later.")
        else:
            runs.cancel_run(run, "Enough.", "mara")
        end_lease(lease, "released", reason="A stop was requested.")


def test_nights_start_whatever_happened_to_those_before(track: Track, main_repository: Repository, node: Node) -> None:
    with time_machine.travel(MONDAY, tick=False) as clock:
        for number, failure in enumerate((*FAILURES, "model")):
            clock.move_to(MONDAY + number * DAY)
            sha = main_repository.commit(f"Night {number}")
            nightly.start_nightly_runs(timezone.now())
            run = Run.objects.select_related("entry", "job").get(entry__sha=sha)
            assert (run.state, run.purpose) == ("queued", "nightly"), f"night {number}"
            end_badly(run, lease_job(run.job, node), failure)
    assert Night.objects.exclude(run=None).count() == Night.objects.count() == len(FAILURES) + 1
    ended = {(run.state, run.cause) for run in Run.objects.all()}
    assert {("failed", "infrastructure"), ("failed", "model"), ("cancelled", ""), ("paused", "")} <= ended


def test_baseline_is_not_withdrawn_before_a_maintainer_decides(finished_monday_night: Night) -> None:
    baseline = finished_monday_night.run.entry
    for _ in range(2):
        with pytest.raises(intake.IntakeError, match="It is the baseline of Season 0"):
            intake.withdraw_entry(baseline, "The pull request was closed.", "github:ada")
    baseline.refresh_from_db()
    assert baseline.state == Entry.State.APPROVED
    asked = "Not withdrawn (The pull request was closed): it is the baseline of Season 0. A maintainer decides."
    assert Event.objects.about(baseline).filter(sentence=asked).count() == 1
    Season.objects.update(baseline=None)
    intake.withdraw_entry(baseline)


def test_nights_go_on_beside_a_withdrawn_baseline(
    finished_monday_night: Night, main_repository: Repository, node: Node
) -> None:
    Track.objects.update(ladder={"rungs": [0.5, 1], "seeds": 1})
    Entry.objects.update(state=Entry.State.WITHDRAWN)
    idle = nightly.start_nightly_runs(MONDAY + DAY)[0]
    assert idle.run is None
    assert idle.sentence.endswith("the baseline is withdrawn: a maintainer chooses another one.")
    fill_ladders()
    assert not Job.objects.filter(state=Job.State.QUEUED).exists()
    main_repository.commit("Moved")
    (night,) = nightly.start_nightly_runs(MONDAY + 2 * DAY)
    assert finish_run(night.run, node).state == "finished"
