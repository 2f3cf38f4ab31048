"""Graphs of entries: which runs train one, the smoke job that traces it, and its files (docs/explanation/graphs.md).

A run on a traced track waits for the graph of its configuration. Runs that differ in budget and seed share it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from django.db.models import Q
from django.urls import reverse
from pydantic import ValidationError
from typing_extensions import TypedDict

from leaderboard import caps, permissions
from leaderboard.models import Entry, Run, Season, TracedGraph, Track
from leaderboard.sanitize import sanitize_json
from scheduler import storage
from scheduler.models import Blob, Job, JobFile
from trainer import protocol

EXPECTED_SECONDS = 90.0
LIMITS = protocol.JobLimits(wall_seconds=900, memory_bytes=4 * 2**30, disk_bytes=2**30, processes=64)
TRACED_KINDS = (Entry.Kind.ARCHITECTURE, Entry.Kind.MAIN)
FOLDER = "graph"
NO_GRAPH = "It was not traced, so it cannot be trained on this track. Its smoke test says what to change."
MODEL_SETTINGS = ("arch", "preset", "model", "recipe", "train.sequence_length")
"""Settings of a configuration that change the graph. Its costs are those of a micro-batch of one row, for any batch."""
SIZES = ("model.depth", "train.sequence_length")
"""Fields that follow from budget and device if they are not set."""


def needs_graph(run: Run) -> bool:
    """Whether the run trains a graph instead of the entry's Python."""
    return run.track.is_traced and run.entry.kind in TRACED_KINDS and run.start_run_id is None and not run.is_swarm


def hash_config(config: Mapping[str, Any]) -> str:
    """Return the hash of the part of a run's configuration that changes its graph."""
    settings = flatten(config)
    names = MODEL_SETTINGS if all(name in settings for name in SIZES) else (*MODEL_SETTINGS, "budget", "device")
    part = {name: value for name, value in settings.items() if name.startswith(names)}
    return hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as dotted names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


# --- tracing ----------------------------------------------------------------------------------------------------------


def lock_season(season_id: int) -> None:
    """Lock the season until the transaction ends: its graphs are compared with those of the baseline.

    Transactions lock rows in one order, so that no two wait for each other: jobs, seasons, entries, runs. All with
    `no_key`: at its commit, another one checks its foreign keys to the locked rows.
    """
    Season.objects.select_for_update(no_key=True).get(pk=season_id)


def request_graph(run: Run, config: Mapping[str, Any], release: Blob) -> TracedGraph:
    """Return the graph of the run's configuration. Queue its smoke job unless it is traced or being traced.

    Requires `lock_season`.
    """
    entry = Entry.objects.get(pk=run.entry_id)
    candidates = TracedGraph.objects.select_related("entry", "season", "baseline_graph").filter(
        entry=entry, track=run.track, season=run.season, problem=""
    )
    candidates = candidates.filter(config_hash=hash_config(config))
    if run.season.vocabulary_size:  # an earlier smoke test did not know it
        candidates = candidates.filter(Q(hash="") | Q(summary__vocabulary_size=run.season.vocabulary_size))
    return candidates.last() or queue_trace(entry, run.track, run.season, config, release)


def queue_trace(entry: Entry, track: Track, season: Season, config: Mapping[str, Any], release: Blob) -> TracedGraph:
    """Queue a smoke job for a graph of this season.

    An entry's first one is its smoke test. Further ones, and those of main's code, only trace.
    """
    job = Job.objects.create(**build_smoke_job(entry, track, release))
    if entry.smoke_job_id is None and not entry.is_own_code:
        Entry.objects.filter(pk=entry.pk, smoke_job=None).update(smoke_job=job)
        entry.smoke_job = job
    settings = {name: value for name, value in config.items() if name != "seed"}
    fields = {"config": settings, "config_hash": hash_config(config), "job": job}
    return TracedGraph.objects.create(entry=entry, track=track, season=season, **fields)


def build_smoke_job(entry: Entry, track: Track, release: Blob) -> dict[str, Any]:
    """Return the fields of the job. `main` was reviewed; other code runs in the sandbox.

    A node could return another graph than it traced, and code may not be approved yet: only trusted nodes take it.
    """
    is_main = entry.kind == Entry.Kind.MAIN
    return {
        "kind": "smoke",
        "priority": Job.Priority.SCORE,  # short, and its author waits
        "impact": entry.impact,
        "expected_seconds": EXPECTED_SECONDS,
        "author": entry.author,
        "needs_sandbox": not is_main,
        "needs_trusted": track.is_traced or entry.state != Entry.State.APPROVED,
        "track": track.slug,
        "from_core": is_main or (entry.requested_by is not None and permissions.is_core(entry.requested_by)),
        "max_attempts": 3,
        "needs_memory_bytes": LIMITS.memory_bytes,
        "needs_disk_bytes": LIMITS.disk_bytes,
        "release": release,
        "entry": entry.bundle,
        "limits": LIMITS.model_dump(),
    }


def store_trace(graph: TracedGraph, summary: Mapping[str, Any] | None, problem: str) -> None:
    """Store what the smoke job left, once. `problem`: why there is no graph, if there is none."""
    if summary is not None and (files := load_graph_files(graph.job, str(summary.get("hash")))):
        # each part by itself: no long one takes the place of what the caps are for
        graph.hash, graph.summary = files.hash, {name: sanitize_json(part) for name, part in summary.items()}
        graph.save(update_fields=["hash", "summary"])
        check_caps(graph)
    else:
        graph.problem = (problem or NO_GRAPH)[:500]
        graph.save(update_fields=["problem"])


def check_caps(*traced: TracedGraph) -> None:
    """Store which of their season's caps graphs exceed. Select what `caps.list_values` reads."""
    ruled = caps.list_ruled_caps()
    for graph in traced:
        graph.problem = caps.describe_cap_violations(graph, ruled)[:500]
    TracedGraph.objects.bulk_update(traced, ["problem"], batch_size=1000)


# --- files ------------------------------------------------------------------------------------------------------------


def build_order_files(graph: TracedGraph | None) -> protocol.GraphFiles | None:
    """Return the graph for an order; None: the entry's Python is run."""
    if graph is None:
        return None
    files = load_graph_files(graph.job, graph.hash)
    assert files is not None, f"checked before it was stored: the files of {graph}"
    return files


class GraphFileDict(TypedDict):
    """A file of a graph to download."""

    path: str
    size: int
    sha256: str
    url: str


def list_download_links(graph: TracedGraph | None) -> list[GraphFileDict]:
    """Return the four files of a traced graph; empty without one."""
    files = load_graph_files(graph.job, graph.hash) if graph and graph.hash else None
    if files is None:
        return []
    return [
        {"path": file.path, "size": file.size, "sha256": file.sha256, "url": write_file_url(files.hash, file.path)}
        for file in files.files
    ]


def write_file_url(graph_hash: str, name: str) -> str:
    return reverse("graph-file", args=[graph_hash, name])


def find_file_blob(graph_hash: str, name: str) -> Blob | None:
    """Return a file of the graph with this hash, whichever smoke job left it."""
    files = JobFile.objects.filter(job__traced_graph__hash=graph_hash, path=f"{FOLDER}/{name}").select_related("blob")
    file = files.first()
    return file.blob if file else None


def load_graph_files(job: Job, graph_hash: str) -> protocol.GraphFiles | None:
    """Return the graph that a smoke job left; None if it left none with this hash."""
    found = JobFile.objects.filter(job=job, path__startswith=f"{FOLDER}/").select_related("blob")
    blobs = {file.path.removeprefix(f"{FOLDER}/"): file.blob for file in found}
    files = [storage.build_file_reference(blobs[name], name) for name in protocol.GRAPH_FILES if name in blobs]
    try:
        return protocol.GraphFiles(hash=graph_hash, files=tuple(files))
    except ValidationError:
        return None
