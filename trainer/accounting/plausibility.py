"""Why a run's FLOPs or seconds may not count: the sentences, and what they are checked against from outside.

A training process says itself what it used; its author's code ran in it. The agent's meter is another process. So:

- seconds: those that a run charges to its budget must be most of those that the agent metered;
- FLOPs: a count that the metered time could not have computed is too large, and one whose FLOPs take many times as long
  as the baseline's on the same class of node is too small: other work is hidden behind it;
- a run is charged at least its budget, whatever it says.

Pure, the standard library only: the site uses it.
"""

from __future__ import annotations

from trainer.accounting.peak_flops import peak

NO_FORMULA = "The model runs an operator without a registered formula: its FLOPs are not known."
LEAVES_TORCH = "The model takes tensors out of torch while it computes: its FLOPs cannot be counted."
CHANGES = "The model does other work in the middle of training than when its FLOPs were counted first."
FAILED = "The model's FLOPs could not be counted: a forward and backward pass failed."
IMPOSSIBLE = "The count of the model's FLOPs cannot be right."
SENTENCES = ("", NO_FORMULA, LEAVES_TORCH, CHANGES, FAILED, IMPOSSIBLE)
"""Why a count is void; the first means that it is not."""

SLOWEST = 10.0
"""A counted FLOP may take this many times as long as the baseline's. A guess on the generous side, for honest work that
is slow (recurrences in plain torch, many small products). What hides within this factor is not caught by time alone."""

SHARE = 0.5
"""Of the metered seconds a run has to charge at least this share, beyond `SETTING_UP`."""

SETTING_UP = 180.0
"""Seconds that a run may spend uncharged at the start of each lease: libraries, data, compilation."""


def peak_of(name: str) -> float | None:
    """Return the FLOP/s of a device, or of a node's class ("2 x NVIDIA H100"); None where we have no figure."""
    figure = peak(name)
    count, times, _ = name.partition(" x ")
    return figure * int(count) if figure is not None and times and count.isdigit() else figure


def flops_void(flops: float, metered: float, peak: float | None, usual: float | None) -> str:
    """Return why this count cannot be right, "" if it can.

    `metered`: seconds of the training process, as the agent has them. `peak`: FLOP/s of the node's devices, None where
    we have no figure. `usual`: the baseline's metered seconds a FLOP on the same class of node, None if none ran there.
    """
    if flops <= 0 or metered <= 0:
        return IMPOSSIBLE
    if peak is not None and flops / metered > peak:
        times = flops / metered / peak
        return f"Its FLOPs in the metered {metered:,.0f} s are {times:.1f} times what the devices can do."
    if usual is not None and metered / flops > SLOWEST * usual:
        times = metered / flops / usual
        return (
            f"A counted FLOP of it takes {times:.0f} times as long as the baseline's on the same class of node: "
            "work that is not counted may hide behind that."
        )
    return ""


def seconds_void(charged: float, metered: float, leases: int = 1) -> str:
    """Return why the seconds that a run charged cannot be right, given those metered over all of its leases.

    To charge too many gains a run nothing.
    """
    if charged < SHARE * (metered - leases * SETTING_UP):
        return f"It charges {charged:,.0f} s where the agent metered {metered:,.0f} s: its clock cannot be right."
    return ""
