"""Results of smoke jobs: the files of a graph and its summary."""

from __future__ import annotations

import hashlib
from typing import Any

from leaderboard.models import Entry, Run, TracedGraph
from scheduler import storage
from scheduler.models import Blob, Job, JobFile
from tests.support.node_jobs import finish_job
from trainer import protocol

SUMMARY: dict[str, Any] = {
    "vocabulary_size": 512,
    "sequence_length": 64,
    "parameters": 120_000,
    "buffer_elements": 512,
    "stored_bytes": 482_048,
    "constant_bytes": 0,
    "flops_per_token": 800_000.0,
    "product_flops_per_token": 700_000.0,
    "scoring_flops_per_token": 250_000.0,
    "bytes_per_token": 4_000.0,
    "reference_seconds_per_token": 1e-9,
    "calls": {"initialization": {"aten::randn": 9}, "features": {"aten::linear": 8}, "logits": {"aten::linear": 1}},
    "operators": [
        {"name": "aten::linear", "flops_per_token": 700_000.0, "bytes_per_token": 3_000.0},
        {"name": "dailytrain::norm", "flops_per_token": 100_000.0, "bytes_per_token": 1_000.0},
    ],
    "modules": [{"name": "blocks.0", "flops_per_token": 800_000.0, "bytes_per_token": 4_000.0}],
}


def attach_graph(job: Job, **summary: Any) -> dict[str, Any]:
    """Attach the four files to a job; return the summary of the graph. Equal summaries are equal graphs."""
    hashes = []
    for name in protocol.GRAPH_FILES:
        content = f'{{"{name}": "{job.traced_graph.entry.sha} {job.traced_graph.entry.architecture} {summary}"}}'
        blob = storage.store_bytes(content.encode())
        JobFile.objects.create(job=job, path=f"graph/{name}", blob=blob)
        hashes.append(blob.sha256)
    return {**SUMMARY, **summary, "hash": hashlib.sha256("".join(hashes).encode()).hexdigest()}


def finish_trace(run: Run, *, passed: bool = True, sentence: str = "It traces and learns.", **summary: Any) -> Run:
    """Finish the smoke job for which a run waits."""
    run.refresh_from_db()
    assert run.graph is not None
    graph = attach_graph(run.graph.job, **summary)
    finish_job(run.graph.job, {"passed": passed, "sentence": sentence, "checks": [], "graph": graph})
    run.refresh_from_db()
    return run


def store_graph(entry: Entry, **summary: Any) -> TracedGraph:
    """Return the traced graph of an entry, without the files."""
    release, _ = Blob.objects.get_or_create(sha256="ab" * 32, defaults={"size": 100_000})
    job = Job.objects.create(kind="smoke", state=Job.State.DONE, release=release)
    content = {**SUMMARY, **summary}
    graph_hash = hashlib.sha256(f"{entry.pk} {content}".encode()).hexdigest()
    return TracedGraph.objects.create(
        entry=entry,
        track=entry.track,
        season=entry.track.season,
        config_hash="c" * 64,
        job=job,
        hash=graph_hash,
        summary={**content, "hash": graph_hash},
    )
