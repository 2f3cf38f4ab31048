"""Runs that are behind the ladder run of their seed stop, with a verdict, unless a maintainer lets them go on."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from leaderboard import actions, runs, tasks
from leaderboard.integrations.github import entry_status
from leaderboard.models import CurvePoint, Entry, Run, TracedGraph, Track
from leaderboard.rankings.standings_store import recompute_standings
from leaderboard.run_states import RunError
from leaderboard.schedule import early_stops, ladder
from leaderboard.submissions import policy
from scheduler import leases
from scheduler.models import Job, Lease, Node
from tests.leaderboard.conftest import create_checkpoint
from tests.support import boards, scene
from tests.support.graph_jobs import attach_graph, store_graph
from tests.support.node_jobs import end_lease, finish_job, lease_job, requeue_job
from trainer.scoring.multiplier import futility

RECIPE: dict[str, Any] = {"clip": None, "groups": [{"name": "all", "match": ["*"], "learning_rate": 0.01}]}
FASTER: dict[str, Any] = {**RECIPE, "groups": [{**RECIPE["groups"][0], "learning_rate": 0.02}]}
TRAIN = {"evaluations": 8, "sequence_length": 64, "batch": 8}
FULL = 1e13
Start = Callable[..., tuple[Run, Lease]]


def add_evaluations(run: Run, multiplier: float, until: float) -> None:
    """Add the evaluations of a run at the eighths of its budget, as those of a node, and its progress."""
    for eighth in range(int(until * 8) + 1):
        loss = boards.compute_loss(max(eighth, 0.1) / 8 * multiplier) + 0.1
        flops = {"flops": FULL * eighth / 8, "seconds": 1.0 * eighth, "loss": 2 * loss, "bits_per_byte": loss}
        CurvePoint.objects.update_or_create(
            run=run, series="dev", step=100 * eighth, defaults={"tokens": 9_000 * eighth, **flops}
        )
    Run.objects.filter(pk=run.pk).update(fraction=until, step=int(until * 800))


@pytest.fixture
def race_track(site: Any, db: None) -> Track:
    """A track with a full ladder, whose runs stop early; the runs of its baseline have their evaluations."""
    settings = {"stops_early": True, "is_traced": True, "config": {"model": {"depth": 2}, "train": TRAIN}}
    track, baseline = boards.create_ladder_track(**settings)
    graph = store_graph(baseline, recipe=RECIPE)
    boards.fill_ladder(baseline)
    baseline.runs.update(graph=graph, job=None)
    for run in baseline.runs.filter(budget=track.budget):
        add_evaluations(run, 1.0, 1.0)
    return Track.objects.select_related("season__baseline").get(pk=track.pk)


@pytest.fixture
def start_run(race_track: Track) -> Start:
    """Returns a function that starts an entry's run, by default with a seed and the recipe of the ladder."""

    def start(recipe: dict[str, Any] = RECIPE, entry: dict[str, Any] | None = None, **fields: Any) -> tuple[Run, Lease]:
        idea = scene.create_entry(race_track, f"Idea {Entry.objects.count()}", "smear", **(entry or {}))
        graph = store_graph(idea)
        graph.summary = attach_graph(graph.job, recipe=recipe)
        graph.hash = graph.summary["hash"]
        graph.baseline_graph = TracedGraph.objects.get(entry=race_track.season.baseline_id)
        graph.save()
        run = scene.create_run(idea, state=Run.State.QUEUED, **{"graph": graph, "seed": 2, **fields})
        Job.objects.filter(run=run).update(limits=race_track.training_limits().model_dump())
        cellar, _ = Node.objects.get_or_create(name="cellar", state=Node.State.ONLINE, trusted=True)
        lease = lease_job(Job.objects.get(run=run), cellar)
        run.refresh_from_db()
        return run, lease

    return start


def look(run: Run, multiplier: float, until: float) -> Run:
    add_evaluations(run, multiplier, until)
    early_stops.stop_runs_behind()
    run.refresh_from_db()
    return run


@pytest.mark.parametrize("leave", [requeue_job, lambda lease: end_lease(lease, "released")])
def test_run_far_behind_stops_with_a_verdict_once_it_leaves_its_node(start_run: Start, leave: Any) -> None:
    run, lease = start_run()
    assert not look(run, 0.7, 0.1).is_behind
    add_evaluations(run, 0.7, 0.25)
    tasks.apply_policies()
    run.refresh_from_db()
    assert run.is_behind
    job = Job.objects.get(run=run)
    assert (run.state, job.stop_requested) == ("training", "finish"), "its node saves a checkpoint first"
    assert run.look_behind == pytest.approx(0.3, abs=0.03)
    leave(lease)
    run.refresh_from_db()
    job.refresh_from_db()
    assert (run.state, job.state, run.counts, run.look_fraction) == ("stopped", "cancelled", True, 0.25)
    assert re.fullmatch(r"Stopped at 1/4: [\d.]+ ± [\d.]+ % behind\.", run.reason)
    assert leases.claim_job(lease.node) is None, "the node is free for the next in the queue"
    assert run in Run.objects.failed()


@pytest.mark.parametrize("multiplier", [0.99, 1.0, 1.02, 1.3, 4.0])
def test_run_that_is_not_behind_trains_on(start_run: Start, multiplier: float) -> None:
    run, _ = start_run()
    for until in futility.LOOKS:
        assert look(run, multiplier, until).look_fraction == until
        assert (run.is_behind, Job.objects.get(run=run).stop_requested) == (False, "")


@pytest.mark.parametrize(
    "fields",
    [
        {"purpose": Run.Purpose.CONFIRMATION},
        {"purpose": Run.Purpose.LADDER},
        {"entry": {"kind": Entry.Kind.MAIN}},
        {"seed": 77},
        {"goes_on": True},
        {"graph": None},
        {"budget": "5e12flops"},
    ],
)
def test_run_that_must_not_stop_is_not_compared(start_run: Start, fields: dict[str, Any]) -> None:
    run, _ = start_run(**fields)
    for until in futility.LOOKS:
        assert look(run, 0.2, until).look_fraction is None


@pytest.mark.parametrize("change", ["rate", "batch", "unknown"])
def test_entry_with_another_recipe_has_a_wider_bound(start_run: Start, change: str) -> None:
    run, _ = start_run(recipe={"rate": FASTER, "batch": RECIPE, "unknown": {}}[change])
    TracedGraph.objects.update(config={"train": {"batch": 8}})
    if change == "batch":
        TracedGraph.objects.filter(runs=run).update(config={"train": {"batch": 16}})
    assert not look(run, 0.7, 0.25).is_behind, "its curve may yet cross the baseline's"
    assert look(run, 0.1, 0.5).is_behind


def test_maintainer_lets_a_stopped_run_go_on_to_its_end(start_run: Start, maintainer: User) -> None:
    run, lease = start_run()
    Entry.objects.filter(pk=run.entry_id).update(requested_by=(author := User.objects.create_user("ada")))
    create_checkpoint(Job.objects.get(run=run), 100)
    look(run, 0.7, 0.25)
    end_lease(lease, "released")
    run = Run.objects.get(pk=run.pk)
    with pytest.raises(RunError, match="not possible now"):
        actions.perform_run_action(run, "go-on", author, is_maintainer=False)
    actions.perform_run_action(run, "go-on", maintainer, is_maintainer=True)
    run.refresh_from_db()
    assert (run.state, run.is_behind, run.goes_on, run.counts, run.finished_at) == ("queued", False, True, False, None)
    lease_job(Job.objects.get(run=run), lease.node)
    for until in futility.LOOKS:
        assert (look(run, 0.2, until).state, run.is_behind) == ("training", False), "nothing stops it again"
    assert (run.look_fraction, Job.objects.get(run=run).stop_requested) == (0.25, ""), "the verdict stays readable"


def test_losses_of_an_untrusted_node_stop_nothing(start_run: Start, django_assert_num_queries: Any) -> None:
    run, lease = start_run()
    Node.objects.filter(pk=lease.node_id).update(trusted=False, valid_in_a_row=100)
    assert look(run, 0.7, 0.25).look_fraction is None
    with django_assert_num_queries(2):  # tracks and runs: no standings are computed for it
        early_stops.stop_runs_behind()
    Node.objects.filter(pk=lease.node_id).update(trusted=True)
    assert look(run, 0.7, 0.25).is_behind


def test_run_behind_that_its_node_fails_is_compared_again_after_a_retry(start_run: Start) -> None:
    run, lease = start_run()
    assert look(run, 0.7, 0.125).is_behind
    end_lease(lease, "failed", cause="infrastructure")
    Run.objects.filter(pk=run.pk).update(state=Run.State.FAILED, cause="infrastructure")
    Job.objects.filter(run=run).update(state=Job.State.FAILED)
    run.refresh_from_db()
    runs.retry_run(run, actor="ada")
    run.refresh_from_db()
    assert (run.state, run.is_behind) == ("queued", False)


def test_run_that_ends_before_its_node_reads_the_request_is_scored(start_run: Start) -> None:
    run, _ = start_run()
    look(run, 0.7, 0.5)
    create_checkpoint(Job.objects.get(run=run), 800)
    finish_job(Job.objects.get(run=run), {"step": 800})
    run.refresh_from_db()
    assert run.state == "scoring"


def test_stopped_entry_gives_back_hours_and_gets_no_more_seeds(race_track: Track, start_run: Start) -> None:
    run, lease = start_run()
    hours = policy.compute_hours(race_track)
    Entry.objects.filter(pk=run.entry_id).update(policy_approved_at=timezone.now(), policy_hours=hours)
    look(run, 0.7, 0.25)
    assert Entry.objects.get(pk=run.entry_id).policy_hours == hours, "it may end before its node reads the request"
    end_lease(lease, "released")
    assert Entry.objects.get(pk=run.entry_id).policy_hours == pytest.approx(hours / 4)
    scene.create_run(run.entry, state=Run.State.FINISHED, bits_per_byte=2.0, seed=3)
    assert run.entry not in ladder.find_entries_lacking_seeds(race_track)


def test_hours_of_an_entry_follow_its_stopped_runs_and_those_that_go_on(
    race_track: Track, start_run: Start, maintainer: User
) -> None:
    first, lease = start_run()
    entry = Entry.objects.filter(pk=first.entry_id)
    entry.update(policy_approved_at=timezone.now(), policy_hours=9.0, state=Entry.State.APPROVED)
    verdict = {"is_behind": True, "look_fraction": 0.5, "look_behind": 0.1, "look_error": 0.01}
    scene.create_run(first.entry, seed=3, budget=first.budget, state=Run.State.STOPPED, fraction=0.5, **verdict)
    look(first, 0.7, 0.25)
    end_lease(lease, "released")
    assert entry.get().policy_hours == pytest.approx(policy.compute_hours(race_track, 0.75))
    first.refresh_from_db()
    actions.perform_run_action(first, "go-on", maintainer, is_maintainer=True)
    assert entry.get().policy_hours == pytest.approx(policy.compute_hours(race_track, 1.5))


def test_entry_gets_further_seeds_one_by_one_while_it_is_undecided(race_track: Track) -> None:
    Track.objects.update(is_traced=False)  # the runs of this test have no graphs
    race_track.refresh_from_db()
    entries = {}
    for title, multiplier in (("Better", 1.3), ("Level", 1.01), ("Worse", 0.8)):
        entries[title] = scene.create_entry(race_track, title, "smear", sha=title)
        boards.create_scored_run(entries[title], multiplier, seed=1)
    lacking = ladder.find_entries_lacking_seeds(race_track)
    assert not lacking, "no standings yet"
    recompute_standings(race_track)
    assert list(lacking.all()) == [entries["Level"]]
    Entry.objects.update(policy_approved_at=timezone.now(), policy_hours=policy.compute_hours(race_track))
    assert ladder.fill_ladder(race_track) == 1
    assert not lacking.all(), "its second run has no score yet"
    assert Entry.objects.get(title="Level").policy_hours == policy.compute_hours(race_track, 2)
    assert Entry.objects.get(title="Better").policy_hours == policy.compute_hours(race_track, 1)


def test_seeds_of_entries_are_those_of_the_ladder_where_runs_stop(race_track: Track) -> None:
    idea = scene.create_entry(race_track, "Idea", "smear")
    own = {runs.make_run(idea, race_track).seed for _ in range(3)}
    assert own == {1, 2, 3}
    assert runs.make_run(idea, race_track).seed > 3, "all are used"
    confirming = runs.make_run(idea, race_track, purpose=Run.Purpose.CONFIRMATION)
    race_track.stops_early = False
    assert min(confirming.seed, runs.make_run(idea, race_track).seed) > 3


def test_database_refuses_stops_of_other_runs(start_run: Start) -> None:
    run, _ = start_run()
    found = {"look_fraction": 0.25, "look_behind": 0.3, "look_error": 0.02, "is_behind": True}
    others: Any = ({"purpose": "confirmation"}, {"purpose": "ladder"}, {"goes_on": True}, {"look_error": None})
    for fields in (*({**found, **other} for other in others), {**found, "look_behind": -0.1}, {"state": "stopped"}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Run.objects.filter(pk=run.pk).update(**fields)
    Run.objects.filter(pk=run.pk).update(**found, state=Run.State.STOPPED)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"budget": "180s"}, "budget in FLOPs"),
        ({"ladder": {}}, "has a ladder"),
        ({"config": {"train": {"evaluations": 5}}}, "multiple of 8"),
    ],
)
def test_track_that_cannot_compare_runs_refuses_the_switch(
    race_track: Track, fields: dict[str, Any], problem: str
) -> None:
    race_track.check_early_stops()
    for name, value in fields.items():
        setattr(race_track, name, value)
    with pytest.raises(ValidationError, match=problem):
        race_track.clean()


def test_verdict_is_on_pages_in_the_api_and_in_the_comment(client: Client, start_run: Start) -> None:
    run, lease = start_run()
    look(run, 0.7, 0.25)
    end_lease(lease, "released")
    run = Run.objects.get(pk=run.pk)
    for page in (run.get_absolute_url(), run.entry.get_absolute_url(), run.track.get_absolute_url()):
        assert run.describe_look() in client.get(page).content.decode()
    found = client.get(f"/api/v1/runs/{run.pk}").json()
    assert (found["state"], found["look_fraction"], found["look_behind"]) == ("stopped", 0.25, run.look_behind)
    status = entry_status.get_entry_status(run.entry, timezone.now())
    assert (status.title, status.conclusion) == ("Stopped early", "neutral")
    assert run.describe_look() in status.line
