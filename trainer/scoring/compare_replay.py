"""Distance between the checkpoint that a replay computed and the one that a node claimed; runs outside the sandbox.

    python -m trainer.scoring.compare_replay START CLAIMED REPLAYED [--start-is-replayed]      (folders)

deviation = |replayed - claimed| / |claimed - start|, over all weights together: 0 for the same machine, small for one
that rounds differently, 1 or more if the steps were not trained as claimed. If the replay starts from the initial
weights, these come from the untrusted sandbox. The denominator is then at most |claimed|, so that forged initial
weights cannot make it large.

state deviation = root of the mean, over all numbers of the optimizer's state and the norms of the spike filter, of the
squared |replayed - claimed| / max(|replayed|, |claimed|) of their tensors: 0 to 1.4. Each tensor counts by its size, so
that one that holds rounding errors alone counts little. At least the difference of a counter of updates divided by the
step: rounding may decide whether a gradient is skipped. What a machine cannot round is equal, or the deviation is
`MAX_DEVIATION`: the step, what was charged, the position in the data and settings.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from trainer.checkpoint.files import open_weights
from trainer.errors import ExitCode, UserError, print_error
from trainer.protocol.files import OPTIMIZER_FILE, STATE_FILE

MAX_DEVIATION = 1e9
"""Deviation of weights that have other shapes, are not finite, or differ although nothing should have changed."""


RATE_ROUNDING = 1e-6
"""Relative difference of rates that another machine's floating-point functions explain."""


COUNTERS = ("spikes", "optimizers")
MAX_COUNTER = 2**63
UNREADABLE = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RuntimeError),
    pickle.UnpicklingError,
)
"""Errors of a state that a node made up."""


class ReplayComparison(NamedTuple):
    exact: bool  # equal to the last bit
    deviation: float


class CheckpointComparison(NamedTuple):
    exact: bool  # equal to the last bit, weights and state
    deviation: float
    state_deviation: float


def compare_checkpoints(
    start: Path, claimed: Path, replayed: Path, *, start_is_replayed: bool = False
) -> CheckpointComparison:
    """Compare two folders. Raise `UserError` or `OSError` if one that the replay wrote cannot be read."""
    weights = compare_weights(start, claimed, replayed, start_is_replayed=start_is_replayed)
    state = compare_states(claimed, replayed)
    return CheckpointComparison(weights.exact and state == 0, weights.deviation, state)


def compare_weights(start: Path, claimed: Path, replayed: Path, *, start_is_replayed: bool = False) -> ReplayComparison:
    """Compare the weights in three folders, or files. Raise `UserError` if one cannot be read."""
    sums = sum_squares(start, claimed, replayed)
    if sums is None:
        return ReplayComparison(exact=False, deviation=MAX_DEVIATION)
    difference, update, size = (math.sqrt(value) for value in sums)
    distance = min(update, size) if start_is_replayed else update
    if difference == 0:
        return ReplayComparison(exact=True, deviation=0.0)
    return ReplayComparison(
        exact=False, deviation=min(difference / distance, MAX_DEVIATION) if distance > 0 else MAX_DEVIATION
    )


def sum_squares(start: Path, claimed: Path, replayed: Path) -> tuple[float, float, float] | None:
    """Return |replayed - claimed|^2, |claimed - start|^2, |claimed|^2; None for bad names, shapes or numbers."""
    difference = update = size = 0.0
    with ExitStack() as stack:
        try:
            a, r = (stack.enter_context(open_weights(path)) for path in (start, replayed))
        except SafetensorError as error:
            raise UserError(f"a checkpoint's weights cannot be read: {error}") from error
        try:
            b = stack.enter_context(open_weights(claimed))
        except (SafetensorError, UserError, *UNREADABLE):
            return None
        if not a.keys() == b.keys() == r.keys():
            return None
        for name in b:
            slices = [files[name].get_slice(name) for files in (a, b, r)]
            if len({(str(part.get_dtype()), *part.get_shape()) for part in slices}) > 1:
                return None
            initial, sent, computed = (files[name].get_tensor(name).to(torch.float64) for files in (a, b, r))
            difference += float((computed - sent).square().sum())
            update += float((sent - initial).square().sum())
            size += float(sent.square().sum())
    return (difference, update, size) if all(math.isfinite(value) for value in (difference, update, size)) else None


def compare_states(claimed: Path, replayed: Path) -> float:
    """Return the state deviation of two checkpoints' `state.json` and optimizer state."""
    ours = read_comparable_state(replayed)
    try:
        theirs = read_comparable_state(claimed)
    except UNREADABLE:
        return MAX_DEVIATION
    total, count, distances = 0.0, 0, [0.0]
    for part, our, their in list_pairs(ours, theirs):
        if not is_same_kind(our, their):
            return MAX_DEVIATION
        if isinstance(our, Tensor) and our.ndim:
            total += our.numel() * measure_distance(our, their) ** 2
            count += our.numel()
        elif part in COUNTERS and is_counter(our) and is_counter(their):
            distances.append(abs(float(our) - float(their)) / max(1, ours["step"]))
        elif not is_equal(our, their):
            return MAX_DEVIATION
    distances.append(math.sqrt(total / count) if count else 0.0)
    return max(distances) if all(map(math.isfinite, distances)) else MAX_DEVIATION


def read_comparable_state(folder: Path) -> dict[str, Any]:
    """Return what two machines compute alike."""
    state = json.loads((folder / STATE_FILE).read_bytes())
    norms = state["spikes"].pop("norms")
    content = {name: state[name] for name in ("step", "spikes", "loader", "clock")}
    content["spent"] = {name: state["spent"][name] for name in ("steps", "tokens", "flops")}
    content["norms"] = torch.tensor(norms, dtype=torch.float64)
    if (folder / OPTIMIZER_FILE).exists():
        file = folder / OPTIMIZER_FILE
        content["optimizers"] = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    return content


def list_pairs(ours: Any, theirs: Any, part: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the numbers and tensors at the same places, and values of other kinds or structures where both differ.

    `part`: the name of what they are in. Only our structure is walked: theirs may be without end.
    """
    if type(ours) is not type(theirs) or not isinstance(ours, dict | list | tuple):
        yield part, ours, theirs
    elif (len(ours) != len(theirs)) or (isinstance(ours, dict) and ours.keys() != theirs.keys()):
        yield part, ours, None
    else:
        for name in ours if isinstance(ours, dict) else range(len(ours)):
            yield from list_pairs(ours[name], theirs[name], part or name)


def is_same_kind(ours: Any, theirs: Any) -> bool:
    """Return whether a comparison of both cannot fail: values of one type, or dense tensors of the same shape."""
    if type(ours) is not type(theirs) or not isinstance(ours, Tensor):
        return type(ours) is type(theirs)
    kinds = [(a.is_nested, a.layout, a.dtype, a.device, a.is_nested or a.shape) for a in (ours, theirs)]
    return kinds[0] == kinds[1]


def measure_distance(ours: Tensor, theirs: Tensor) -> float:
    """Return |ours - theirs| divided by the larger of both."""
    a, b = ours.detach().to(torch.float64), theirs.detach().to(torch.float64)
    largest = max(float(a.norm()), float(b.norm()))
    return float((a - b).norm()) / largest if largest else 0.0


def is_counter(value: Any) -> bool:
    return (type(value) is int and abs(value) < MAX_COUNTER) or (isinstance(value, Tensor) and value.ndim == 0)


def is_equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=RATE_ROUNDING)
    return bool(ours == theirs)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="trainer.scoring.compare_replay", description="Compare a replayed checkpoint with the claimed one."
    )
    parser.add_argument("start", type=Path, help="checkpoint before the replayed steps")
    parser.add_argument("claimed", type=Path, help="checkpoint that the node sent")
    parser.add_argument("replayed", type=Path, help="checkpoint that the replay computed")
    parser.add_argument("--start-is-replayed", action="store_true", help="the start was computed by the replay, too")
    options = parser.parse_args(argv)
    try:
        comparison = compare_checkpoints(**vars(options))
    except (UserError, OSError) as error:
        return print_error("trainer.scoring.compare_replay", error, ExitCode.USER_ERROR)
    sys.stdout.write(json.dumps(comparison._asdict()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
