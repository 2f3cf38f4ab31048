"""The jobs of a run: the configuration, code, needs and limits of its training and scoring jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leaderboard import permissions, track_hours, unrelated_nodes
from leaderboard.models import Entry, Run, Track
from leaderboard.scoring_work import compute_scoring_work, estimate_scoring_times
from scheduler import matching
from scheduler.models import Blob, Job
from trainer import protocol
from trainer.accounting.budget import Budget
from trainer.accounting.training_size import MAX_UNSENT_SECONDS, compute_upload_seconds

CHECKPOINT_EVERY = "30s"  # the default of `dailytrain train`
SWARM_PROCESSES = 4096
NIGHTLY_UNSENT_SECONDS = 1500.0
"""Longest time without an upload on nightly tracks: what an interruption costs has to fit before the next night."""
PRIORITIES = {
    Run.Purpose.NIGHTLY: Job.Priority.NIGHTLY,
    Run.Purpose.CONFIRMATION: Job.Priority.CONFIRMATION,
    Run.Purpose.LADDER: Job.Priority.LADDER,
    Run.Purpose.REWIND: Job.Priority.MAINTAINER,
    Run.Purpose.MONTHLY: Job.Priority.LADDER,  # it takes days: everything shorter goes first, until it ages
}


def build_train_job(run: Run, release: Blob | None, priority: Job.Priority | None = None) -> dict[str, Any]:
    """Return the fields of the run's job. Without a release they are good for estimates only.

    Without a priority it has that of its purpose. Playground runs and standing work yield to a nightly run.
    """
    limits = run.track.training_limits(run.part)
    priority = get_priority(run) if priority is None else priority
    return {
        "kind": "notebook" if is_notebook(run) else "train",
        "priority": priority,
        "impact": run.entry.impact,
        "expected_seconds": run.expected_seconds,
        "author": run.entry.author,
        **get_code(run),
        "checkpoint_seconds": run.expected_seconds if is_notebook(run) else get_checkpoint_seconds(run),
        "preemptible": run.track.kind == Track.Kind.PLAYGROUND or priority == Job.Priority.LADDER,
        **get_needs(run, limits),
        **track_hours.get_job_columns(run),
        "release": release,
        **get_limit_columns(run),
        **(unrelated_nodes.build_job_constraints(run.entry) if run.purpose == Run.Purpose.CONFIRMATION else {}),
        **(build_coordinator_fields(run, limits) if run.is_swarm else {}),
    }


def get_limit_columns(run: Run) -> dict[str, Any]:
    """Return the job's columns with limits, computed from the sizes of the track's baseline and of the run's graph."""
    uploads = run.track.upload_limits(count_trained_parameters(run))
    return {
        "limits": run.track.training_limits(run.part).model_dump(),
        "max_file_bytes": uploads.file_bytes if uploads else None,
        "max_lease_bytes": uploads.lease_bytes if uploads else None,
    }


def count_trained_parameters(run: Run) -> int:
    """Return how many parameters the run's graph trains; 0 without one. `Run.parameters` counts a checkpoint's."""
    return int(run.graph.summary.get("parameters", 0)) if run.graph else 0


def get_upload_seconds(run: Run) -> float | None:
    """Return the shortest time between two uploads of the run's checkpoints; None: each is uploaded."""
    sizes = run.track.get_checkpoint_sizes(count_trained_parameters(run))
    if not sizes.checkpoint:
        return None
    seconds = compute_upload_seconds(sizes, run.expected_seconds, get_max_unsent_seconds(run.track.nightly))
    return seconds if seconds > get_checkpoint_seconds(run) else None


def get_max_unsent_seconds(nightly: bool) -> float:
    """Return how much work a run of a track may lose with its node."""
    return NIGHTLY_UNSENT_SECONDS if nightly else MAX_UNSENT_SECONDS


def get_milestone_percent(run: Run) -> int:
    """Return the spacing of the run's milestones in percent of its budget; 0: none. Ladders and trials have none."""
    has_milestones = run.purpose != Run.Purpose.LADDER and not run.is_trial and not run.is_swarm
    return run.track.milestone_percent if has_milestones else 0


def build_coordinator_fields(run: Run, limits: protocol.JobLimits) -> dict[str, Any]:
    """Return the fields that differ for a swarm's coordinator: a trusted node of any hardware, and the site's code."""
    return {
        **get_scoring_needs(run, limits, run.season.get_dataset_bytes("test")),
        "kind": "swarm",
        "needs_trusted": True,
        "needs_gpus": 0,
        "needs_gpu_memory_bytes": 0,
        "limits": get_swarm_limits(limits).model_dump(),
    }


def get_swarm_limits(limits: protocol.JobLimits) -> protocol.JobLimits:
    """Return the limits of one process of a swarm. The daemon for its connections has many threads."""
    return limits.model_copy(update={"processes": max(limits.processes, SWARM_PROCESSES)})


def get_code(run: Run) -> dict[str, Any]:
    """Return the fields of the code that a job runs. Graphs and swarms need no file of the entry, and no sandbox."""
    if run.graph_id is not None or run.is_swarm:
        return {"entry": None, "needs_sandbox": False}
    return {"entry": run.entry.bundle, "needs_sandbox": needs_sandbox(run)}


def get_needs(run: Run, limits: protocol.JobLimits) -> dict[str, Any]:
    """Return the fields by which a training job is matched with nodes."""
    track = run.track
    needs = matching.parse_labels(tuple(track.needs_labels))
    return {
        "track": track.slug,
        "from_core": is_from_core(run),
        "needs_labels": list(needs.names),
        "needs_gpus": needs.gpus,
        "needs_gpu_memory_bytes": needs.gpu_memory_bytes,
        "needs_memory_bytes": track.needs_memory_bytes,
        "needs_disk_bytes": max(limits.disk_bytes + run.season.get_dataset_bytes("train", "dev"), needs.disk_bytes),
    }


def is_from_core(run: Run) -> bool:
    """Whether the site or a core member requested the run, so that nodes lent to the core may train it."""
    return run.purpose != Run.Purpose.ENTRY or run.entry.kind == Entry.Kind.MAIN or is_core(run.entry)


def is_core(entry: Entry) -> bool:
    """Whether a core member requested the entry."""
    return entry.requested_by is not None and permissions.is_core(entry.requested_by)


def get_checkpoint_seconds(run: Run) -> float:
    """Return the expected seconds between two checkpoints; 0 if unknown."""
    try:
        every = Budget.parse(str(get_configuration(run).get("checkpoint_every", CHECKPOINT_EVERY)))
    except ValueError:  # the node reports the error
        return 0.0
    if every.kind == "seconds":
        return every.amount
    return (every.share_of(Budget.parse(run.budget)) or 0.0) * run.expected_seconds


def merge_configs(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested configurations; later ones win."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            is_nested = isinstance(value, Mapping) and isinstance(result.get(name), dict)
            result[name] = merge_configs(result[name], value) if is_nested else value
    return result


def get_configuration(run: Run) -> dict[str, Any]:
    """Return the run's configuration: the track's, the entry's, a trial's, and what only the site sets."""
    trial = run.track.trial.get("config", {}) if run.is_trial else {}
    site: dict[str, Any] = {"budget": run.budget, "seed": run.seed}
    if run.track.stops_early:  # at the same parts of the budget as the ladder
        site["train"] = {"evaluations": run.track.config["train"]["evaluations"]}
    return merge_configs(get_entry_configuration(run.entry, run.track), trial, site)


def get_entry_configuration(entry: Entry, track: Track) -> dict[str, Any]:
    """Return the configuration of an entry's runs with the whole budget, without a seed."""
    architecture = get_trained_architecture(track.config, entry.architecture)
    return merge_configs(track.config, entry.config, {"arch": architecture, "budget": track.budget})


def get_trained_architecture(track_config: Mapping[str, Any], architecture: str) -> str:
    """Return the architecture to train: the track's size of it, such as `rwkv5-7b` for `rwkv5`, or the entry's own."""
    fixed = str(track_config.get("arch", ""))
    return fixed if fixed.startswith(f"{architecture}-") else architecture


def is_notebook(run: Run) -> bool:
    """Whether the run executes notebooks, without checkpoints and scores."""
    return run.entry.kind == Entry.Kind.NOTEBOOK


def needs_sandbox(run: Run) -> bool:
    """Whether the run's code is untrusted. `main` was reviewed, and swarms run the site's code."""
    return run.entry.kind != Entry.Kind.MAIN and not run.is_swarm


def get_priority(run: Run) -> Job.Priority:
    if run.purpose in PRIORITIES:
        return PRIORITIES[Run.Purpose(run.purpose)]
    requester = run.entry.requested_by
    if run.track.kind != Track.Kind.PLAYGROUND and requester and permissions.is_maintainer(requester):
        return Job.Priority.MAINTAINER
    return Job.Priority.COMMUNITY


def build_score_job(run: Run, suite: Sequence[str]) -> dict[str, Any]:
    """Return the fields of the job that scores a run or one of its releases, on these benchmark tasks."""
    assert run.job is not None, "a run with weights has a job"
    test_bytes = run.season.get_dataset_bytes("test")
    work = compute_scoring_work(run, suite, test_bytes)
    expected_seconds, wall_seconds = estimate_scoring_times(run.track, work)
    limits = run.track.scoring_limits(count_trained_parameters(run))
    limits = limits.model_copy(update={"wall_seconds": wall_seconds})
    return {
        "kind": "score",
        "priority": Job.Priority.SCORE,
        "expected_seconds": expected_seconds,
        "author": run.entry.author,
        "needs_trusted": True,
        **get_scoring_needs(run, limits, test_bytes),
        **get_code(run),
        "release": run.job.release,
        "limits": limits.model_dump(),
    }


def get_scoring_needs(run: Run, limits: protocol.JobLimits, test_bytes: int) -> dict[str, Any]:
    """Return the needs of scoring: no labels, one GPU at most, and the memory of inference instead of training."""
    needs = get_needs(run, limits)
    computed = run.track.get_scoring_memory(count_trained_parameters(run))
    return {
        **needs,
        "needs_labels": [],
        "needs_gpus": min(needs["needs_gpus"], 1),
        "needs_gpu_memory_bytes": computed if computed and needs["needs_gpus"] else needs["needs_gpu_memory_bytes"],
        "needs_memory_bytes": min(needs["needs_memory_bytes"], limits.memory_bytes),
        "needs_disk_bytes": limits.disk_bytes + test_bytes,
    }
