"""Distance between the weights that a replay computed and those that a node claimed; runs outside the sandbox.

    python -m trainer.scoring.compare_replay START CLAIMED REPLAYED [--start-is-replayed]      (folders or files)

deviation = |replayed - claimed| / |claimed - start|, over all weights together: 0 for the same machine, small for one
that rounds differently, 1 or more if the steps were not trained as claimed. If the replay starts from the initial
weights, these come from the untrusted sandbox. The denominator is then at most |claimed|, so that forged initial
weights cannot make it large.

Not covered: the optimizer's state, whose differences appear in the next replay.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError

from trainer.checkpoint.weight_files import open_weights
from trainer.errors import ExitCode, UserError, print_error

MAX_DEVIATION = 1e9
"""Deviation of weights that have other shapes, are not finite, or differ although nothing should have changed."""


class ReplayComparison(NamedTuple):
    exact: bool  # equal to the last bit
    deviation: float


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
    try:
        with open_weights(start) as a, open_weights(claimed) as b, open_weights(replayed) as r:
            if not a.keys() == b.keys() == r.keys():
                return None
            for name in b:
                initial, sent, computed = (files[name].get_tensor(name).to(torch.float64) for files in (a, b, r))
                if not initial.shape == sent.shape == computed.shape:
                    return None
                difference += float((computed - sent).square().sum())
                update += float((sent - initial).square().sum())
                size += float(sent.square().sum())
    except SafetensorError as error:
        raise UserError(f"a checkpoint's weights cannot be read: {error}") from error
    return (difference, update, size) if all(math.isfinite(value) for value in (difference, update, size)) else None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="trainer.scoring.compare_replay", description="Compare replayed weights with the claimed ones."
    )
    parser.add_argument("start", type=Path, help="weights before the replayed steps")
    parser.add_argument("claimed", type=Path, help="weights that the node sent")
    parser.add_argument("replayed", type=Path, help="weights that the replay computed")
    parser.add_argument("--start-is-replayed", action="store_true", help="the start was computed by the replay, too")
    options = parser.parse_args(argv)
    try:
        comparison = compare_weights(**vars(options))
    except (UserError, OSError) as error:
        return print_error("trainer.scoring.compare_replay", error, ExitCode.USER_ERROR)
    sys.stdout.write(json.dumps(comparison._asdict()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
