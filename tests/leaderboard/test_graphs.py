"""Runs on traced tracks: waiting for the graph, training without a sandbox, sharing graphs, and caps."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, TestCase
from django.urls import reverse
from django.utils import timezone

from leaderboard import graphs, runs
from leaderboard.job_handlers import generation
from leaderboard.job_handlers.generation import Prompt
from leaderboard.models import Entry, Run, Season, TracedGraph, Track
from leaderboard.schedule import ladder, next_season
from leaderboard.submissions import intake
from leaderboard.submissions.intake import IntakeError
from scheduler import storage, transitions
from scheduler.job_kinds import get_job_kind
from scheduler.models import Job, JobFile, Node
from scheduler.retention import delete_expired
from tests.leaderboard.conftest import Repository, finish_run
from tests.support.graph_jobs import attach_graph, finish_trace, store_graph
from tests.support.nights import MONDAY, start_night
from tests.support.node_jobs import finish_job, lease_job
from trainer import protocol


@pytest.fixture
def traced_track(track: Track) -> Track:
    track.is_traced = True
    track.save()
    track.season.vocabulary_size = 512
    track.season.caps = {}
    track.season.save()
    return track


@pytest.fixture
def waiting_run(traced_track: Track, proposed_entry: Entry) -> Run:
    """The run of an approved entry that changes its architecture, which waits for its graph."""
    proposed_entry.changed_files = ["trainer/models/smear.py"]
    proposed_entry.save()
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, None)
    return run


def build_order(job: Job | None) -> Any:
    return get_job_kind(job).build_order(job, None)


def test_approved_run_waits_for_its_trace(waiting_run: Run) -> None:
    waiting_run.refresh_from_db()
    assert (waiting_run.state, waiting_run.job) == ("waiting", None)
    assert waiting_run.reason == "Approved; waits for the smoke test that traces it."
    job = Job.objects.get()
    assert (job.kind, job.needs_trusted, job.needs_sandbox) == ("smoke", True, True)
    assert (waiting_run.graph, waiting_run.entry.smoke_job) == (job.traced_graph, job)
    order = build_order(job)
    assert (order.vocabulary_size, order.trace_only) == (512, False)
    assert order.config == {**waiting_run.track.config, "arch": "smear", "budget": "20steps"}


def test_traced_run_has_graph_and_no_entry_files(waiting_run: Run, node: Node) -> None:
    run = finish_trace(waiting_run)
    assert run.state == "queued"
    order = build_order(run.job)
    assert order.graph.hash == run.graph.hash
    assert [file.path for file in order.graph.files] == list(protocol.GRAPH_FILES)
    run = finish_run(run, node)
    assert build_order(run.score_job).graph == order.graph
    text_job = generation.queue_generation(run, Prompt("The train", 50, 0.5), "192.0.2.1").job
    assert build_order(text_job).graph == order.graph
    for job in (run.job, run.score_job, text_job):
        assert (job.entry, job.needs_sandbox) == (None, False)


def test_runs_of_equal_config_share_a_graph(waiting_run: Run) -> None:
    run = finish_trace(waiting_run)
    [second_run] = runs.queue_more_seeds(run.entry, 1, actor="mara")
    half_run = runs.make_run(run.entry, run.track, budget="10steps")
    runs.queue_run(half_run)
    assert {second_run.graph, half_run.graph} == {run.graph}
    assert second_run.state == half_run.state == "queued"
    Track.objects.update(trial={"part": 0.25, "config": {"model": {"depth": 1}}})
    run.track.refresh_from_db()
    trial_run = runs.make_run(run.entry, run.track, budget=run.track.trial_budget)
    runs.queue_run(trial_run)
    assert trial_run.graph != run.graph
    assert build_order(trial_run.graph.job).trace_only, "a second smoke test would run"
    assert finish_trace(trial_run).state == "queued"


@pytest.mark.parametrize(
    ("config", "is_equal"),
    [
        ({"seed": 7, "budget": "1s", "threads": 1, "train": {"sequence_length": 64, "batch": 2}}, True),
        ({"train": {"sequence_length": 32}}, False),
        ({"model": {"depth": 3}}, False),
        ({"model": {"depth": 2, "width": 32}}, False),
        ({"arch": "gpt"}, False),
        ({"recipe": {"clip": 1.0}}, False),
    ],
)
def test_config_hash_depends_on_what_changes_the_graph(config: dict[str, Any], is_equal: bool) -> None:
    base = {"arch": "smear", "model": {"depth": 2}, "train": {"sequence_length": 64}, "seed": 1, "budget": "20steps"}
    assert (graphs.hash_config({**base, **config}) == graphs.hash_config(base)) is is_equal


SENTENCE = "smear.py:12: `.item()` reads a value: use torch.where."


@pytest.mark.parametrize(
    ("result", "graph", "reason"),
    [
        ({"passed": False, "sentence": SENTENCE}, None, SENTENCE),
        ({"passed": True, "sentence": "It is sound."}, None, graphs.NO_GRAPH),
        ({"passed": True, "sentence": "It is sound."}, {"hash": "a" * 64}, ""),
    ],
)
def test_trace_without_a_valid_graph_fails_the_run(
    waiting_run: Run, result: dict[str, Any], graph: dict[str, str] | None, reason: str
) -> None:
    job = Job.objects.get()
    summary = {**attach_graph(job), **graph} if graph else {}
    finish_job(job, {**result, "checks": [], "graph": summary})
    waiting_run.refresh_from_db()
    assert not TracedGraph.objects.usable().exists()
    assert (waiting_run.state, waiting_run.cause) == ("failed", "model")
    assert waiting_run.reason.startswith(reason)


def test_failed_smoke_test_of_traced_entry_waits_for_maintainer(waiting_run: Run) -> None:
    run = finish_trace(waiting_run, passed=False, sentence="The loss does not fall.")
    assert run.state == "waiting"
    assert "Approve it again to train it anyway" in run.reason
    (run,) = intake.approve_entry(run.entry, run.entry.sha, None)
    assert run.state == "queued"
    delete_expired(timezone.now() + timedelta(days=400))
    files = graphs.build_order_files(run.graph)
    assert JobFile.objects.filter(blob__in=[file.sha256 for file in files.files]).count() == 4


def test_retried_run_of_an_earlier_season_is_traced_once(waiting_run: Run, node: Node) -> None:
    lease_job(Job.objects.get(), node)
    transitions.fail_job(Job.objects.get(), "node:cellar", "infrastructure", "The node was lost.")
    earlier_season = waiting_run.season
    later_season = Season.objects.create(name="Season 1", active=False, vocabulary_size=512, dataset_hash="e" * 64)
    next_season.begin_season(later_season)
    waiting_run = Run.objects.get(pk=waiting_run.pk)
    runs.retry_run(waiting_run, actor="mara")
    assert TracedGraph.objects.filter(problem="").get().season == earlier_season
    assert finish_trace(waiting_run).state == "queued"
    assert Job.objects.filter(kind="smoke").count() == 2


def test_main_is_only_traced_and_needs_no_sandbox(traced_track: Track) -> None:
    night = start_night(MONDAY)
    job = Job.objects.get()
    assert (job.kind, job.needs_trusted, job.needs_sandbox) == ("smoke", True, False)
    assert build_order(job).trace_only
    assert night.run.entry.smoke_job is None
    assert finish_trace(night.run).state == "queued"


def test_ladder_with_waiting_traces_queues_limited_runs(traced_track: Track) -> None:
    night = start_night(MONDAY)
    traced_track.season.baseline = night.run.entry
    traced_track.season.save()
    traced_track.ladder = {"rungs": [0.5, 1], "seeds": 3}
    traced_track.save()
    assert sum(ladder.fill_ladder(traced_track) for _ in range(3)) == ladder.WAITING_AT_ONCE
    assert Run.objects.filter(purpose="ladder", state="waiting").count() == ladder.WAITING_AT_ONCE
    finish_trace(night.run)
    assert not Run.objects.filter(state="waiting").exists()
    assert len(set(Run.objects.values_list("graph", flat=True))) == 1


def test_score_order_names_the_baselines_losses(waiting_run: Run, node: Node) -> None:
    run = finish_run(finish_trace(waiting_run), node)
    assert not graphs.needs_graph(Run(entry=run.entry, track=run.track, season=run.season, start_run=run)), "a rewind"
    assert build_order(run.score_job).reference is None
    losses = storage.store_bytes(b"losses")
    JobFile.objects.create(job=run.score_job, path="losses.npy", blob=losses)
    run.season.baseline = run.entry
    run.season.save()
    second_run = finish_run(runs.rerun(run, actor="mara"), node)
    assert build_order(second_run.score_job).reference == storage.build_file_reference(losses, "losses.npy")


# --- caps ------------------------------------------------------------------------------------------------------------


def test_graph_over_a_cap_fails_the_run_and_says_by_how_much(waiting_run: Run) -> None:
    waiting_run.season.caps = {"parameters": 100_000, "stored_bytes": 1_000_000}
    waiting_run.season.save()
    run = finish_trace(waiting_run)
    assert (run.state, run.cause) == ("failed", "model")
    assert run.reason == "120,000 trained parameters: 20,000 over the season's cap of 100,000."


@pytest.fixture
def capped_run(traced_track: Track, proposed_entry: Entry) -> Run:
    """The run of an entry whose scoring FLOPs are capped. The baseline has a graph of another configuration."""
    release = storage.store_release()
    fields = {"kind": "main", "title": "main", "architecture": "gpt", "sha": "b" * 40, "state": "approved"}
    baseline = Entry.objects.create(track=traced_track, bundle=release, **fields)
    store_graph(baseline, scoring_flops_per_token=1.0)
    traced_track.season.baseline = baseline
    traced_track.season.caps = {"scoring_flops": 2}
    traced_track.season.save()
    proposed_entry.track.season.refresh_from_db()
    proposed_entry.changed_files = ["trainer/models/smear.py"]
    proposed_entry.save()
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, None)
    run.refresh_from_db()
    return run


def trace_baseline(run: Run, **summary: Any) -> None:
    """Finish the smoke job of the baseline's graph."""
    baseline = TracedGraph.objects.get(pk=run.graph.baseline_graph_id)
    content = attach_graph(baseline.job, **summary)
    finish_job(baseline.job, {"passed": True, "sentence": "It traces.", "checks": [], "graph": content})
    run.refresh_from_db()


@pytest.mark.parametrize("is_baseline_first", [True, False])
def test_scoring_flops_over_the_cap_fail_the_run(capped_run: Run, is_baseline_first: bool) -> None:
    run = capped_run
    if is_baseline_first:
        trace_baseline(run, scoring_flops_per_token=100_000.0)
        run = finish_trace(run)
    else:
        run = finish_trace(run)
        assert (run.state, run.reason) == ("waiting", "Approved; waits for the graph of the baseline.")
        trace_baseline(run, scoring_flops_per_token=100_000.0)
    assert run.reason == "2.5 times the baseline's FLOPs per scored token: 0.5 over the season's cap of 2."
    assert run.state == "failed"


def test_run_within_the_cap_is_queued_when_the_baseline_is_traced(capped_run: Run) -> None:
    run = finish_trace(capped_run)
    baseline = run.graph.baseline_graph
    assert build_order(baseline.job).config == {**run.track.config, "arch": "gpt", "budget": "20steps"}
    trace_baseline(run, scoring_flops_per_token=200_000.0)
    assert run.state == "queued"
    [second_run] = runs.queue_more_seeds(run.entry, 1, actor="mara")
    assert (second_run.state, Job.objects.filter(kind="smoke").count()) == ("queued", 3)


def test_run_can_be_retried_after_the_baseline_could_not_be_traced(capped_run: Run) -> None:
    run = finish_trace(capped_run)
    finish_job(run.graph.baseline_graph.job, {"passed": False, "sentence": "No memory.", "checks": []})
    run.refresh_from_db()
    assert (run.state, run.cause) == ("failed", "infrastructure")
    assert "The baseline, with which it is compared, has no graph. No memory." in run.reason
    runs.retry_run(run, actor="mara")
    run.refresh_from_db()
    trace_baseline(run, scoring_flops_per_token=200_000.0)
    assert run.state == "queued"


def save_in_admin(client: Client, season: Season, **changes: Any) -> None:
    """Save the season's admin form with changes."""
    address = reverse("admin:leaderboard_season_change", args=[season.pk])
    form = client.get(address).context["adminform"].form
    form_data = {bound.html_name: bound.value() for bound in form if bound.value() is not None}
    started = timezone.localtime(season.started_at)
    form_data |= {"started_at_0": f"{started:%Y-%m-%d}", "started_at_1": f"{started:%H:%M:%S}"} | changes
    with TestCase.captureOnCommitCallbacks(execute=True):
        assert client.post(address, form_data).status_code == 302


@pytest.fixture
def queued_run(capped_run: Run, client: Client) -> Run:
    """A queued run within the caps, and a superuser who is logged in."""
    finish_trace(capped_run)
    trace_baseline(capped_run, scoring_flops_per_token=200_000.0)
    assert capped_run.state == "queued"
    client.force_login(User.objects.create_superuser("root"))
    return capped_run


def test_season_admin_with_new_baseline_or_caps_rechecks_queued_run(queued_run: Run, client: Client) -> None:
    fields = {"kind": "main", "title": "main", "architecture": "gpt", "sha": "c" * 40, "state": "approved"}
    baseline = Entry.objects.create(track=queued_run.track, bundle=queued_run.entry.bundle, **fields)
    season, job = queued_run.season, queued_run.job
    save_in_admin(client, season, baseline=baseline.pk)
    queued_run.refresh_from_db()
    assert (queued_run.state, queued_run.job) == ("waiting", None)
    assert queued_run.reason == "Approved; waits for the graph of the baseline."
    assert queued_run.graph.baseline_graph.entry == baseline
    trace_baseline(queued_run, scoring_flops_per_token=200_000.0)
    assert queued_run.state == "queued"
    season.refresh_from_db()
    save_in_admin(client, season, caps='{"scoring_flops": 1.2}')
    queued_run.refresh_from_db()
    job.refresh_from_db()
    assert (queued_run.state, queued_run.cause, job.state) == ("failed", "model", "cancelled")
    assert queued_run.reason == "1.25 times the baseline's FLOPs per scored token: 0.05 over the season's cap of 1.2."


def test_source_beyond_the_cap_is_refused_at_intake(main_repository: Repository, traced_track: Track) -> None:
    traced_track.season.caps = {"source_bytes": 20_000}
    traced_track.season.save()
    noise = "".join(f"# {random.Random(line).getrandbits(400):x}\n" for line in range(400))
    fork = main_repository.fork(main_repository.path.with_name("fork"))
    sha = fork.commit("Words", {"trainer/models/smear.py": noise})
    with pytest.raises(IntakeError, match=r"compressed bytes of source beyond main's: [\d,]+ over the season's cap"):
        intake.submit_entry(str(fork.path), sha, "Words", "smear", traced_track)
