"""Check a run's reported FLOPs and seconds against the time that the node measured.

The training process reports its own usage, and the author's code runs in it. The node's meter is a separate process.

- Seconds: the run must charge most of the measured seconds to its budget.
- FLOPs: a count is too large if the devices could not have computed it in the measured time. It is too small if a FLOP
  takes many times as long as the baseline's on the same class of node, which hints at hidden work.
- A run is charged at least its budget.

Standard library only: the site uses it too.
"""

from __future__ import annotations

NO_FORMULA = "The model runs an operator without a registered formula: its FLOPs are not known."
LEAVES_TORCH = "The model takes tensors out of torch while it computes: its FLOPs cannot be counted."
CHANGES = "The model does other work in the middle of training than when its FLOPs were counted first."
FAILED = "The model's FLOPs could not be counted: a forward and backward pass failed."
IMPOSSIBLE = "The count of the model's FLOPs cannot be right."
VOID_REASONS = ("", NO_FORMULA, LEAVES_TORCH, CHANGES, FAILED, IMPOSSIBLE)
"""Reasons for a void count. The empty one means that it is valid."""
MAX_SLOWDOWN = 10.0
"""A counted FLOP may take this many times as long as the baseline's. A generous guess, for honest work that is slow
(recurrences in plain torch, many small products). Hidden work within this factor is not detected."""
MIN_CHARGED_SHARE = 0.5  # share of the measured seconds, after `SETUP_SECONDS`, that a run must charge
SETUP_SECONDS = 180.0
"""Seconds that a run may spend uncharged at the start of each lease: libraries, data, compilation."""


def explain_implausible_flops(flops: float, metered: float, peak: float | None, usual: float | None) -> str:
    """Return why this count cannot be right, or "".

    `metered`: seconds of the training process, measured by the node. `peak`: FLOP/s of the node's devices, None if
    unknown. `usual`: the baseline's measured seconds per FLOP on the same class of node, None if it never ran there.
    """
    if flops <= 0 or metered <= 0:
        return IMPOSSIBLE
    if peak is not None and flops / metered > peak:
        times = flops / metered / peak
        return f"Its FLOPs in the metered {metered:,.0f} s are {times:.1f} times what the devices can do."
    if usual is not None and metered / flops > MAX_SLOWDOWN * usual:
        times = metered / flops / usual
        return (
            f"A counted FLOP of it takes {times:.0f} times as long as the baseline's on the same class of node: "
            "work that is not counted may hide behind that."
        )
    return ""


def explain_implausible_seconds(charged: float, metered: float, leases: int = 1) -> str:
    """Return why the charged seconds cannot be right, given those measured over all leases, or "".

    Charging too many gains a run nothing.
    """
    if charged < MIN_CHARGED_SHARE * (metered - leases * SETUP_SECONDS):
        return f"It charges {charged:,.0f} s where the agent metered {metered:,.0f} s: its clock cannot be right."
    return ""
