"""How far is what a replay computed from what a node said it had computed? The site's own code, outside the sandbox.

    python -m trainer.scoring.compare_replay START CLAIMED REPLAYED [--start-is-replayed]      (files of weights)

deviation = |replayed - claimed| / |claimed - start|, over all weights together: 0 where the same machine computes the
same, small where another one rounds otherwise, about 1 and more where the stretch was not trained as the run says.
Where the stretch begins with the first weights, these come out of the sandbox too: the distance then counts as no
longer than the claimed weights themselves, so that false first weights cannot make it long.

Not covered: the optimizer's half of a checkpoint, which shows in the next stretch.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open

from trainer.cli.parser import Parser

MAX_DEVIATION = 1e9
"""Deviation of weights that have other shapes, are not finite, or differ where nothing was to move."""


class ReplayComparison(NamedTuple):
    exact: bool
    """The same to the last bit."""
    deviation: float


def compare_weights(start: Path, claimed: Path, replayed: Path, *, start_is_replayed: bool = False) -> ReplayComparison:
    """Compare three files of weights. Raise `ValueError` if one cannot be read."""
    sums = sum_squares(start, claimed, replayed)
    if sums is None:
        return ReplayComparison(exact=False, deviation=MAX_DEVIATION)
    apart, moved, size = (math.sqrt(value) for value in sums)
    distance = min(moved, size) if start_is_replayed else moved
    if apart == 0:
        return ReplayComparison(exact=True, deviation=0.0)
    return ReplayComparison(
        exact=False, deviation=min(apart / distance, MAX_DEVIATION) if distance > 0 else MAX_DEVIATION
    )


def sum_squares(start: Path, claimed: Path, replayed: Path) -> tuple[float, float, float] | None:
    """Return |replayed - claimed|^2, |claimed - start|^2, |claimed|^2; None if names, shapes or numbers are amiss."""
    apart = moved = size = 0.0
    try:
        with safe_open(start, "pt") as a, safe_open(claimed, "pt") as b, safe_open(replayed, "pt") as r:
            if not set(a.keys()) == set(b.keys()) == set(r.keys()):
                return None
            for name in b.keys():  # noqa: SIM118  (a file, not a dict)
                before, said, found = (file.get_tensor(name).to(torch.float64) for file in (a, b, r))
                if not before.shape == said.shape == found.shape:
                    return None
                apart += float((found - said).square().sum())
                moved += float((said - before).square().sum())
                size += float(said.square().sum())
    except SafetensorError as error:
        raise ValueError(f"a checkpoint's weights cannot be read: {error}") from error
    return (apart, moved, size) if all(math.isfinite(value) for value in (apart, moved, size)) else None


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="trainer.scoring.compare_replay", description="Compare a replayed stretch with what was claimed."
    )
    parser.add_argument("start", type=Path, help="weights where the stretch begins")
    parser.add_argument("claimed", type=Path, help="weights that the node sent")
    parser.add_argument("replayed", type=Path, help="weights that the replay made")
    parser.add_argument("--start-is-replayed", action="store_true", help="the start, too, came out of the replay")
    options = parser.parse_args(argv)
    try:
        found = compare_weights(**vars(options))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"trainer.scoring.compare_replay: {' '.join(str(error).split())}\n")
        return 2
    sys.stdout.write(json.dumps(found._asdict()) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
