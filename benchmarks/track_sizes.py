"""Parameters, memory and checkpoint bytes of every track template: `python -m benchmarks.track_sizes`.

Writes benchmarks/results/track-sizes.md; `tests/leaderboard/schedule/test_track_kinds.py` compares it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import django

FILE = Path(__file__).parent / "results" / "track-sizes.md"
HEADER = """# Sizes of the track templates

Computed by `trainer/accounting/training_size.py`, not measured on these GPUs. The formula is checked against measured
peaks of three sizes on a CPU. Vocabulary: 32,768 tokens, 65,536 for RWKV-5. Memory is an upper bound for one GPU.
State: weights, gradients, optimizer. Work: activations or the optimizer's update. Rest: gathered weights, CUDA's 2 GB.
Checkpoint: weights and optimizer state, to resume from. Final: weights in fp32. Milestones: all of them, in bf16.
Scoring: memory of the GPU that scores. Expected: a budget of time, or its FLOPs at 40 % of the GPUs' dense bf16 peak
(`trainer/accounting/peak_flops.py`).

"""
SCORING_HEADER = """
## Scoring time

Computed by `trainer/scoring/passes.py` and `trainer/accounting/scoring_time.py`, not measured: no GPU has scored yet.
A pass is one row. Text: 2 million tokens with the look-ahead check. Suite: the template's benchmark tasks, 500
questions of each part at most. Peak times divide the FLOPs by the card's data-sheet figure. Expected and limit assume
half of the fp32 peak, for the suite a quarter of the TF32 peak, 10 ms more for each pass and two minutes for the
start. The card is the one that the template names, else the slowest one with its memory. The limit is twice the time
on the slowest card that has the memory of scoring, all in fp32. All test text: 120 million tokens (1 % of 12 billion)
and the whole suite on the same card.

Text and suite are scored in fp32. On GPUs products are rounded to TF32 where that, measured on some of the windows,
changes the text's score by less than a tenth of its error; the record says which. Rows are not batched. A graph may
read the other rows of a batch, and one row of a night (3.6e12 FLOPs) fills an H100 alone.

"""
SCORING = ("template", "card", "FLOPs a pass", "text passes", "suite passes", "text, fp32 peak", "text, TF32 peak")
SCORING += ("text, bf16 peak", "suite, fp32 peak", "suite, TF32 peak", "expected", "limit", "all test text")
SEASON_TEST_TOKENS = 120_000_000
MEMORY = ("state", "work", "rest", "memory", "of", "scoring")
SIZES = ("checkpoint", "final", "milestones", "sent")
COLUMNS = ("template", "GPUs", "parameters", *MEMORY, *SIZES, "expected", "from")


def render_table() -> str:
    """Return the file's content. Django must be set up."""
    from leaderboard.schedule.track_templates import TEMPLATES

    sizes = render_head(COLUMNS) + "".join(map(render_row, TEMPLATES, TEMPLATES.values()))
    scoring = render_head(SCORING) + "".join(map(render_scoring_row, TEMPLATES, TEMPLATES.values()))
    return HEADER + sizes + SCORING_HEADER + scoring


def render_head(columns: tuple[str, ...]) -> str:
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"


def render_row(name: str, template: dict[str, Any]) -> str:
    from leaderboard.run_jobs import get_max_unsent_seconds
    from leaderboard.schedule.track_templates import MFU, compute_template_size
    from scheduler.matching import parse_labels
    from trainer.accounting.budget import Budget
    from trainer.accounting.training_size import (
        compute_checkpoint_sizes,
        compute_sent_bytes,
        estimate_memory,
        estimate_scoring_memory,
    )

    size, needs = compute_template_size(template), parse_labels(tuple(template["needs_labels"]))
    memory = estimate_memory(size, template["config"])
    state = sum(memory[part] for part in ("weights", "gradients", "optimizer"))
    rest = memory["reserved"] + memory.get("gathered", 0)
    parts = (state, memory["activations or update"], rest, sum(memory.values()), needs.gpu_memory_bytes)
    parts += (sum(estimate_scoring_memory(size, template["config"]["train"]["sequence_length"]).values()),)
    sizes = compute_checkpoint_sizes(size, template.get("milestones", 10))
    every = Budget.parse(template["config"]["checkpoint_every"]).amount
    max_unsent = get_max_unsent_seconds(template.get("nightly", False))
    sent = compute_sent_bytes(sizes, template["expected_seconds"], every, max_unsent)
    stored = (sizes.checkpoint, sizes.final, sizes.milestones * sizes.milestone, sent)
    cells = [f"`{name}`", " + ".join(needs.names) or str(needs.gpus), f"{size.parameters / 1e9:.3f} B"]
    cells += [f"{value / 1e9:.1f} GB" for value in (*parts, *stored)]
    source = "budget" if Budget.parse(template["budget"]).kind == "seconds" else f"{MFU:.0%} MFU"
    return "| " + " | ".join([*cells, f"{template['expected_seconds'] / 3600:.2f} h", source]) + " |\n"


def render_scoring_row(name: str, template: dict[str, Any]) -> str:
    from leaderboard.models.seasons import TEST_TOKENS
    from leaderboard.schedule.track_templates import compute_template_size
    from leaderboard.scoring_work import find_named_gpus
    from scheduler.matching import parse_labels
    from trainer.accounting.peak_flops import PEAK_FLOPS
    from trainer.accounting.scoring_time import (
        ScoringWork,
        choose_slowest_scorer,
        compute_pass_flops,
        get_fp32_flops,
        get_tf32_flops,
    )
    from trainer.accounting.training_size import estimate_scoring_memory
    from trainer.scoring.passes import count_suite_passes, count_text_passes

    size, length = compute_template_size(template), template["config"]["train"]["sequence_length"]
    slowest = choose_slowest_scorer(sum(estimate_scoring_memory(size, length).values()))
    usual = choose_slowest_scorer(parse_labels(tuple(template["needs_labels"])).gpu_memory_bytes)
    card = next(iter(find_named_gpus(template["needs_labels"])), usual)
    flops, suite = compute_pass_flops(size, length), template["suite"]
    passes = count_text_passes(TEST_TOKENS, length), count_suite_passes(suite, template["suite_limit"])
    work = ScoringWork(flops, *passes)
    whole = ScoringWork(flops, count_text_passes(SEASON_TEST_TOKENS, length), count_suite_passes(suite, None))
    peaks = (get_fp32_flops(card), get_tf32_flops(card), PEAK_FLOPS[card])
    seconds = [passes[0] * flops / peak for peak in peaks] + [passes[1] * flops / peak for peak in peaks[:2]]
    seconds += [work.estimate_seconds(card) or 0, work.compute_limit(slowest), whole.estimate_seconds(card) or 0]
    cells = [f"`{name}`", card, f"{flops:.2e}", *(f"{count:,.0f}" for count in passes), *map(render_duration, seconds)]
    return "| " + " | ".join(cells) + " |\n"


def render_duration(seconds: float) -> str:
    return f"{seconds / 60:,.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")
    django.setup()
    FILE.write_text(render_table())
