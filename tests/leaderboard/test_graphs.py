"""Runs on traced tracks: waiting for the graph, training without a sandbox, sharing graphs, and caps."""

from __future__ import annotations

import hashlib
import random
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client, TestCase
from django.urls import reverse
from django.utils import timezone

from leaderboard import graphs, runs
from leaderboard.job_handlers import generation, replays
from leaderboard.job_handlers.generation import Prompt
from leaderboard.models import Entry, Run, Season, TracedGraph, Track
from leaderboard.publishing import weights
from leaderboard.rankings.standings_store import recompute_standings
from leaderboard.schedule import ladder, next_season
from leaderboard.submissions import intake, smoke_tests
from leaderboard.submissions.intake import IntakeError
from scheduler import storage, transitions
from scheduler.job_kinds import get_job_kind
from scheduler.models import Job, JobFile, Node
from scheduler.retention import delete_expired
from tests.leaderboard.conftest import Repository, create_checkpoint, finish_run
from tests.leaderboard.views.test_page_board import extract_text
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
    assert job is not None
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
    assert run.graph is not None
    order = build_order(run.job)
    assert order.graph.hash == run.graph.hash
    assert [file.path for file in order.graph.files] == list(protocol.GRAPH_FILES)
    run = finish_run(run, node)
    assert build_order(run.score_job).graph == order.graph
    text_job = generation.queue_generation(run, Prompt("The train", 50, 0.5), "192.0.2.1").job
    assert build_order(text_job).graph == order.graph
    for job in (run.job, run.score_job, text_job):
        assert job is not None
        assert (job.entry, job.needs_sandbox) == (None, False)


def test_replay_order_has_the_graph(waiting_run: Run, node: Node) -> None:
    run = finish_trace(waiting_run)
    assert run.job is not None
    lease_job(run.job, node)
    for step in (10, 20):
        create_checkpoint(run.job, step)
    finish_job(run.job, {"step": 20})
    run.refresh_from_db()
    replay = replays.request_replay(run, actor="mara")
    assert replay.job is not None
    assert (replay.job.entry, replay.job.needs_sandbox) == (None, False)
    assert build_order(replay.job).graph == graphs.build_order_files(run.graph)


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
    assert trial_run.graph is not None
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


def test_config_hash_without_sizes_depends_on_the_budget() -> None:
    first, second = ({"arch": "gpt", "budget": budget} for budget in ("60s", "24h"))
    assert graphs.hash_config(first) != graphs.hash_config(second)


def test_failed_trace_fails_the_run_with_its_reason(waiting_run: Run) -> None:
    job = Job.objects.get()
    sentence = "smear.py:12: `.item()` reads a value: use torch.where."
    finish_job(job, {"passed": False, "sentence": sentence, "checks": []})
    waiting_run.refresh_from_db()
    assert (waiting_run.state, waiting_run.cause, waiting_run.reason) == ("failed", "model", sentence)


def test_smoke_run_without_graph_files_fails_the_run(waiting_run: Run) -> None:
    finish_job(Job.objects.get(), {"passed": True, "sentence": "It is sound.", "checks": [], "graph": {}})
    waiting_run.refresh_from_db()
    assert (waiting_run.state, waiting_run.reason) == ("failed", graphs.NO_GRAPH)


def test_graph_with_a_forged_hash_is_not_stored(waiting_run: Run) -> None:
    job = Job.objects.get()
    summary = {**attach_graph(job), "hash": "a" * 64}
    finish_job(job, {"passed": True, "sentence": "It is sound.", "checks": [], "graph": summary})
    assert not TracedGraph.objects.usable().exists()


def test_lost_trace_can_be_retried(waiting_run: Run, node: Node) -> None:
    job = Job.objects.get()
    lease_job(job, node)
    transitions.fail_job(job, "node:cellar", "infrastructure", "The node was lost.")
    waiting_run.refresh_from_db()
    assert (waiting_run.state, waiting_run.cause) == ("failed", "infrastructure")
    runs.retry_run(waiting_run, actor="mara")
    waiting_run.refresh_from_db()
    assert waiting_run.state == "waiting"
    assert finish_trace(waiting_run).state == "queued"


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


def test_failed_smoke_test_of_traced_entry_waits_for_maintainer(waiting_run: Run) -> None:
    run = finish_trace(waiting_run, passed=False, sentence="The loss does not fall.")
    assert run.state == "waiting"
    assert "Approve it again to train it anyway" in run.reason
    (run,) = intake.approve_entry(run.entry, run.entry.sha, None)
    assert run.state == "queued"


def test_smoke_test_before_approval_traces_for_the_run(traced_track: Track, proposed_entry: Entry) -> None:
    job = smoke_tests.queue_smoke_test(proposed_entry, is_vouched=True)
    assert job is not None
    assert job.needs_trusted
    finish_job(job, {"passed": True, "sentence": "Sound.", "checks": [], "graph": attach_graph(job)})
    proposed_entry.refresh_from_db()
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, None)
    assert (run.state, run.graph) == ("queued", job.traced_graph)
    assert Job.objects.filter(kind="smoke").count() == 1


def test_graph_of_another_vocabulary_is_traced_again(traced_track: Track, proposed_entry: Entry) -> None:
    job = smoke_tests.queue_smoke_test(proposed_entry, is_vouched=True)
    assert job is not None
    summary = attach_graph(job, vocabulary_size=8192)
    finish_job(job, {"passed": True, "sentence": "Sound.", "checks": [], "graph": summary})
    proposed_entry.refresh_from_db()
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, None)
    assert run.state == "waiting"
    assert finish_trace(run).state == "queued"


def test_withdrawal_cancels_the_trace_and_the_run(waiting_run: Run) -> None:
    intake.withdraw_entry(waiting_run.entry)
    waiting_run.refresh_from_db()
    assert (waiting_run.state, Job.objects.get().state) == ("cancelled", "cancelled")


def test_main_is_only_traced_and_needs_no_sandbox(traced_track: Track) -> None:
    night = start_night(MONDAY)
    assert night.run is not None
    job = Job.objects.get()
    assert (job.kind, job.needs_trusted, job.needs_sandbox) == ("smoke", True, False)
    assert build_order(job).trace_only
    assert night.run.entry.smoke_job is None
    assert finish_trace(night.run).state == "queued"


def test_code_of_main_is_only_traced(traced_track: Track, proposed_entry: Entry) -> None:
    (run,) = intake.approve_entry(proposed_entry, proposed_entry.sha, None)
    job = Job.objects.get()
    assert (job.needs_sandbox, build_order(job).trace_only, run.entry.smoke_job) == (True, True, None)
    assert finish_trace(run).state == "queued"


def test_ladder_with_waiting_traces_queues_limited_runs(traced_track: Track) -> None:
    night = start_night(MONDAY)
    assert night.run is not None
    traced_track.season.baseline = night.run.entry
    traced_track.season.save()
    traced_track.ladder = {"rungs": [0.5, 1], "seeds": 3}
    traced_track.save()
    assert sum(ladder.fill_ladder(traced_track) for _ in range(3)) == ladder.WAITING_AT_ONCE
    assert Run.objects.filter(purpose="ladder", state="waiting").count() == ladder.WAITING_AT_ONCE
    finish_trace(night.run)
    assert not Run.objects.filter(state="waiting").exists()
    assert len(set(Run.objects.values_list("graph", flat=True))) == 1


def test_open_entry_and_rewind_train_python(waiting_run: Run, node: Node) -> None:
    run = finish_run(finish_trace(waiting_run), node)
    rewound = Run(entry=run.entry, track=run.track, season=run.season, start_run=run)
    assert not graphs.needs_graph(rewound)
    run.entry.kind = Entry.Kind.OPEN
    assert not graphs.needs_graph(run)


def test_score_order_names_the_baselines_losses(waiting_run: Run, node: Node) -> None:
    run = finish_run(finish_trace(waiting_run), node)
    assert run.score_job is not None
    assert build_order(run.score_job).reference is None
    losses = storage.store_bytes(b"losses")
    JobFile.objects.create(job=run.score_job, path="losses.npy", blob=losses)
    run.season.baseline = run.entry
    run.season.save()
    second_run = finish_run(runs.rerun(run, actor="mara"), node)
    assert build_order(second_run.score_job).reference == storage.build_file_reference(losses, "losses.npy")


def test_retention_keeps_the_files_of_a_graph(waiting_run: Run, main_repository: Repository) -> None:
    run = finish_trace(waiting_run)
    delete_expired(timezone.now() + timedelta(days=400))
    files = graphs.build_order_files(run.graph)
    assert files is not None
    assert JobFile.objects.filter(blob__in=[file.sha256 for file in files.files]).count() == 4


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
    assert run.graph is not None
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
    assert run.graph is not None
    baseline = run.graph.baseline_graph
    assert baseline is not None
    assert build_order(baseline.job).config == {**run.track.config, "arch": "gpt", "budget": "20steps"}
    trace_baseline(run, scoring_flops_per_token=200_000.0)
    assert run.state == "queued"
    [second_run] = runs.queue_more_seeds(run.entry, 1, actor="mara")
    assert (second_run.state, Job.objects.filter(kind="smoke").count()) == ("queued", 3)


def test_run_can_be_retried_after_the_baseline_could_not_be_traced(capped_run: Run) -> None:
    run = finish_trace(capped_run)
    assert run.graph is not None
    assert run.graph.baseline_graph is not None
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


def test_season_admin_with_lower_caps_fails_the_queued_run(queued_run: Run, client: Client) -> None:
    job = queued_run.job
    assert job is not None
    save_in_admin(client, queued_run.season, caps='{"scoring_flops": 1.2}')
    queued_run.refresh_from_db()
    job.refresh_from_db()
    assert (queued_run.state, queued_run.cause, job.state) == ("failed", "model", "cancelled")
    assert queued_run.reason == "1.25 times the baseline's FLOPs per scored token: 0.05 over the season's cap of 1.2."


def test_season_admin_with_higher_caps_leaves_the_queued_run(queued_run: Run, client: Client) -> None:
    save_in_admin(client, queued_run.season, caps='{"scoring_flops": 3, "parameters": 200000}')
    job_id = queued_run.job_id
    queued_run.refresh_from_db()
    assert (queued_run.state, queued_run.job_id) == ("queued", job_id)


def test_season_admin_with_new_baseline_rechecks_queued_run(queued_run: Run, client: Client) -> None:
    assert queued_run.graph is not None
    fields = {"kind": "main", "title": "main", "architecture": "gpt", "sha": "c" * 40, "state": "approved"}
    baseline = Entry.objects.create(track=queued_run.track, bundle=queued_run.entry.bundle, **fields)
    save_in_admin(client, queued_run.season, baseline=baseline.pk)
    queued_run.refresh_from_db()
    assert (queued_run.state, queued_run.job) == ("waiting", None)
    assert queued_run.reason == "Approved; waits for the graph of the baseline."
    assert queued_run.graph.baseline_graph is not None
    assert queued_run.graph.baseline_graph.entry == baseline
    trace_baseline(queued_run, scoring_flops_per_token=200_000.0)
    assert queued_run.state == "queued"


def test_season_admin_with_lower_caps_keeps_training_run(queued_run: Run, client: Client, node: Node) -> None:
    assert queued_run.job is not None
    lease_job(queued_run.job, node)
    save_in_admin(client, queued_run.season, caps='{"scoring_flops": 1.2}')
    queued_run.refresh_from_db()
    assert (queued_run.state, queued_run.job.state) == ("training", "leased")


def test_season_admin_with_first_baseline_queues_waiting_runs(
    traced_track: Track, waiting_run: Run, client: Client
) -> None:
    season = traced_track.season
    season.caps = {"scoring_flops": 2}
    season.save()
    run = finish_trace(waiting_run)
    assert run.reason == "Approved; waits until the season has a baseline."
    client.force_login(User.objects.create_superuser("root"))
    save_in_admin(client, season, baseline=run.entry_id)
    run.refresh_from_db()
    assert run.state == "queued"


def test_run_of_a_graph_that_exceeds_newer_caps_is_not_queued(queued_run: Run) -> None:
    queued_run.season.caps = {"parameters": 100_000}
    queued_run.season.save()
    [second_run] = runs.queue_more_seeds(queued_run.entry, 1, actor="mara")
    second_run.refresh_from_db()
    assert (second_run.state, second_run.reason) == (
        "failed", "120,000 trained parameters: 20,000 over the season's cap of 100,000.",
    )  # fmt: skip


def test_run_waits_for_a_baseline_where_scoring_flops_are_capped(traced_track: Track, waiting_run: Run) -> None:
    traced_track.season.caps = {"scoring_flops": 2}
    traced_track.season.save()
    run = finish_trace(waiting_run)
    assert (run.state, run.reason) == ("waiting", "Approved; waits until the season has a baseline.")
    traced_track.season.baseline = run.entry
    traced_track.season.save()
    assert runs.queue_waiting(traced_track.season) == 1


def test_files_of_a_graph_can_be_downloaded_by_its_hash(waiting_run: Run, client: Client) -> None:
    run = finish_trace(waiting_run)
    detail = client.get(f"/api/v1/entries/{run.entry_id}").json()
    assert [file["path"] for file in detail["graph_files"]] == list(protocol.GRAPH_FILES)
    assert client.get(f"/api/v1/runs/{run.pk}").json()["graph_files"] == detail["graph_files"]
    for file in detail["graph_files"]:
        content = b"".join(client.get(file["url"]))  # type: ignore[arg-type]
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        assert file["url"].encode() in client.get(run.entry.get_absolute_url()).content
        assert file["url"].encode() in client.get(run.get_absolute_url()).content
    assert client.get(f"/graphs/{'a' * 64}/init.json").status_code == 404
    assert client.get(detail["graph_files"][0]["url"].replace("init.json", "run.json")).status_code == 404


def test_weights_of_a_run_have_the_files_of_its_graph(waiting_run: Run, node: Node) -> None:
    run = finish_run(finish_trace(waiting_run), node)
    run.state = Run.State.FINISHED
    paths = [file.path for file in weights.list_weight_files(run)]
    assert {f"graph/{name}" for name in protocol.GRAPH_FILES} <= set(paths)


def test_run_shows_what_its_graph_costs(waiting_run: Run, client: Client) -> None:
    run = finish_trace(waiting_run)
    Run.objects.filter(pk=run.pk).update(checks={"untrained": {"bits_per_byte": 3.25}})
    Entry.objects.filter(pk=run.entry_id).update(source_bytes=1500)
    page = extract_text(client.get(run.get_absolute_url()).content)
    assert "parameters 120,000 –" in page
    assert "compressed bytes of source beyond main's 1,500 –" in page.replace("&#x27;", "'")
    assert "3.2500 bits per byte" in page
    detail = client.get(f"/api/v1/runs/{run.pk}").json()
    assert (detail["stored_bytes"], detail["constant_bytes"], detail["source_bytes"]) == (482_048, 0, 1500)
    assert (detail["scoring_flops_per_token"], detail["untrained_bits_per_byte"]) == (250_000.0, 3.25)


def test_board_row_shows_what_the_season_caps(waiting_run: Run, node: Node, client: Client) -> None:
    run = finish_run(finish_trace(waiting_run), node)
    score_fields = {"state": Run.State.FINISHED, "trust": Run.Trust.SCORED, "bits_per_byte": 2.0, "parameters": 120_000}
    Run.objects.filter(pk=run.pk).update(**score_fields, finished_at=timezone.now())
    Entry.objects.filter(pk=run.entry_id).update(source_bytes=1500)
    recompute_standings(run.track)
    page = extract_text(client.get(f"/tracks/{run.track.slug}/?columns=parameters,constants,source,scoring").content)
    assert "120 k 471 KiB 0 B 1.46 KiB 2.5 × 10⁵" in page


def test_main_has_no_caps(traced_track: Track) -> None:
    traced_track.season.caps = {"parameters": 1}
    traced_track.season.save()
    night = start_night(MONDAY)
    assert night.run is not None
    assert finish_trace(night.run).state == "queued"


def test_source_beyond_the_cap_is_refused_at_intake(main_repository: Repository, traced_track: Track) -> None:
    traced_track.season.caps = {"source_bytes": 20_000}
    traced_track.season.save()
    noise = "".join(f"# {random.Random(line).getrandbits(400):x}\n" for line in range(400))
    fork = main_repository.fork(main_repository.path.with_name("fork"))
    sha = fork.commit("Words", {"trainer/models/smear.py": noise})
    with pytest.raises(IntakeError, match=r"compressed bytes of source beyond main's: [\d,]+ over the season's cap"):
        intake.submit_entry(str(fork.path), sha, "Words", "smear", traced_track)


def test_unchanged_source_measures_nothing() -> None:
    files = {"trainer/models/gpt.py": b"class Model:\n    pass\n" * 20}
    assert intake.measure_source(files, files) == 0
    assert 0 < intake.measure_source({**files, "trainer/models/new.py": b"class Model:\n    x = 1\n"}, files) < 100
