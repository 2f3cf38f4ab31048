"""Which GPUs are needed now and for what: from the queue, and from the tracks that ask for GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from django.db.models import Count, TextField
from django.db.models.functions import Cast

from scheduler import job_groups, job_kinds
from scheduler.matching import MODEL_LABEL, format_gigabytes, parse_labels
from scheduler.models import Job

CardKey = tuple[int, int, str]
"""Number of GPUs, bytes of memory of each, and the model; empty for any."""


@dataclass
class WantedCards:
    cards: str
    """For example "2 GPUs of 24 GB"."""
    jobs: int = 0
    """Waiting now."""
    tracks: list[str] = field(default_factory=list)


def list_wanted_cards(now: datetime) -> list[WantedCards]:
    """Return what jobs wait for, the longest queue first, then what the other tracks use. Two queries."""
    wanted: dict[CardKey, WantedCards] = {}
    tracks = job_kinds.list_tracks()
    for track in tracks.values():
        needs = parse_labels(track.needs_labels)
        if needs.gpus or find_model(needs.names):
            key = build_key(needs.names, needs.gpus, needs.gpu_memory_bytes)
            wanted.setdefault(key, WantedCards(describe_cards(key))).tracks.append(track.name)
    for labels, gpus, memory, slug, jobs in count_waiting_jobs(now):
        key = build_key(json.loads(labels), gpus, memory)
        row = wanted.setdefault(key, WantedCards(describe_cards(key)))
        row.jobs += jobs
        if slug in tracks and tracks[slug].name not in row.tracks:
            row.tracks.append(tracks[slug].name)
    return [row for _, row in sorted(wanted.items(), key=lambda item: (-item[1].jobs, item[0]))]


def count_waiting_jobs(now: datetime) -> Iterable[tuple[str, int, int, str, int]]:
    """Yield needed labels, GPUs, their memory, track and number of jobs that untrusted nodes with GPUs can start."""
    waiting = Job.objects.filter(job_groups.is_startable(now), state=Job.State.QUEUED, needs_trusted=False)
    rows = waiting.filter(needs_gpus__gt=0).order_by().annotate(labels=Cast("needs_labels", TextField()))
    return rows.values_list("labels", "needs_gpus", "needs_gpu_memory_bytes", "track").annotate(jobs=Count("pk"))


def build_key(names: Iterable[str], gpus: int, memory_bytes: int) -> CardKey:
    count, model = find_model(names) or (0, "")
    return max(gpus, count), memory_bytes, model


def find_model(names: Iterable[str]) -> tuple[int, str] | None:
    """Return number and model of the GPUs that a label such as `1xh100` names."""
    found = next(filter(None, map(MODEL_LABEL.fullmatch, names)), None)
    return (int(found[1]), found[2]) if found else None


def describe_cards(key: CardKey) -> str:
    gpus, memory_bytes, model = key
    what = model.upper() if model else "GPU"
    memory = f" of {format_gigabytes(memory_bytes)}" if memory_bytes and not model else ""
    return f"{gpus} {what}s{memory}" if gpus > 1 else f"{what}{memory}"
