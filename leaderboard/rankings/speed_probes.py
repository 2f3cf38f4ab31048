"""Do this run's seconds compare with other runs'? What the probes beside its training say.

kappa = the node's speed beside this run / the median speed of its node class in the season and track
drift = its speed after the training / its speed before, less 1

Both are fixed when the training ends: a machine that comes later changes no earlier result. Outside the track's
tolerance, or unknown, the seconds are void and the run keeps a sentence about it; its FLOPs stand.

Not covered: what the node did between the two probes. A probe in between would have to stop the training.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from leaderboard.models import Run, Track
from scheduler.models import Job
from trainer import protocol

DEPTH = 4
WIDTH_OF_A_LAYER = 64
"""Width follows depth as in the baseline (`trainer/models/gpt.py`)."""
SHORTEST = 8
MOST_ROWS = 8
"""Rows per step: small enough for the memory of the track's own batch."""


def build_probe_spec(track: Track) -> protocol.ProbeSpec | None:
    """Return how a node's speed is measured: in the track's shape, and in its precision if that is a plain one."""
    if not track.probe_seconds:
        return None
    train, model = track.config.get("train", {}), track.config.get("model", {})
    return protocol.ProbeSpec(
        seconds=track.probe_seconds,
        width=WIDTH_OF_A_LAYER * int(model.get("depth", DEPTH)),
        sequence_length=max(int(train.get("sequence_length", 256)), SHORTEST),
        batch=min(int(train.get("batch", MOST_ROWS)), MOST_ROWS),
        precision=precision if (precision := train.get("precision")) in ("fp32", "bf16") else "auto",
        threads=track.config.get("threads"),
    )


def evaluate_probes(run: Run, job: Job, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the run that say how fast its node was, and whether its seconds count."""
    if not run.track.probe_seconds:
        return {"seconds_void": "This track does not measure how fast its nodes are."}
    readings = parse_probes(result)
    if readings is None:
        return {"seconds_void": "Its node did not report how fast it was before and after the training."}
    before, after = (reading.tokens_per_second for reading in readings)
    speed, drift = math.sqrt(before * after), after / before - 1
    kappa = speed / statistics.median([speed, *list_class_speeds(run)])
    void = explain_interruption(job) or explain_void_seconds(run.track, kappa, drift)
    return {"probe_speed": speed, "kappa": kappa, "drift": drift, "seconds_void": void}


def parse_probes(result: Mapping[str, Any]) -> tuple[protocol.ProbeReading, protocol.ProbeReading] | None:
    try:
        probes = protocol.ProbeResults.model_validate(result.get("probes"))
    except ValidationError:
        return None
    return (probes.before, probes.after) if probes.before and probes.after else None


def list_class_speeds(run: Run) -> list[float]:
    """Return what the probes found on nodes of this class in this season and track."""
    alike = Run.objects.filter(track=run.track_id, season=run.season_id, node_class=run.node_class)
    found = alike.exclude(pk=run.pk).filter(probe_speed__isnull=False)
    return list(found.values_list("probe_speed", flat=True))  # type: ignore[arg-type]


def explain_interruption(job: Job) -> str:
    """The probes are of the last lease; what an earlier one trained was on a node of unknown speed."""
    last = job.leases.order_by("pk").last()
    earlier = job.checkpoints.uploaded().filter(lease__isnull=False).exclude(lease=last)
    return "It was interrupted, and its nodes' speed is known for the last part only." if earlier.exists() else ""


def explain_void_seconds(track: Track, kappa: float, drift: float) -> str:
    if abs(drift) > track.drift_tolerance:
        return f"Its node's speed changed by {drift:+.1%} during the run; {track.drift_tolerance:.1%} is allowed."
    if abs(kappa - 1) > track.kappa_tolerance:
        allowed = f"{track.kappa_tolerance:.1%} more or less is allowed"
        return f"Its node ran at {kappa:.1%} of its class's usual speed; {allowed}."
    return ""
