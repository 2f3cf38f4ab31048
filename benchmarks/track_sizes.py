"""Parameters, memory and checkpoint bytes of every track template: `python -m benchmarks.track_sizes`.

Writes benchmarks/results/track-sizes.md; `tests/leaderboard/schedule/test_track_sizes.py` compares it.
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

| template | GPUs | parameters | state | work | rest | memory | of | checkpoint | weights in bf16 | sent by a run |
|---|---|---|---|---|---|---|---|---|---|---|
"""


def render_table() -> str:
    """Return the file's content. Django must be set up."""
    from leaderboard.schedule.track_templates import TEMPLATES

    return HEADER + "".join(map(render_row, TEMPLATES, TEMPLATES.values()))


def render_row(name: str, template: dict[str, Any]) -> str:
    from leaderboard.schedule.track_templates import compute_template_size
    from scheduler.matching import parse_labels
    from trainer.accounting.budget import Budget
    from trainer.accounting.training_size import compute_upload_seconds, estimate_memory

    size, needs = compute_template_size(template), parse_labels(tuple(template["needs_labels"]))
    memory = estimate_memory(size, template["config"])
    state = sum(memory[part] for part in ("weights", "gradients", "optimizer"))
    rest = memory["reserved"] + memory.get("gathered", 0)
    parts = (state, memory["activations or update"], rest, sum(memory.values()), needs.gpu_memory_bytes)
    seconds = template["expected_seconds"]
    every = min(seconds, compute_upload_seconds(size.checkpoint_bytes, seconds))
    # At least one checkpoint is written in each interval.
    uploads = min(seconds // every, seconds // Budget.parse(template["config"]["checkpoint_every"]).amount + 1)
    stored = (size.checkpoint_bytes, size.milestone_bytes, int(uploads) * size.checkpoint_bytes)
    cells = [f"`{name}`", " + ".join(needs.names) or str(needs.gpus), f"{size.parameters / 1e9:.3f} B"]
    return "| " + " | ".join([*cells, *(f"{value / 1e9:.1f} GB" for value in (*parts, *stored))]) + " |\n"


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")
    django.setup()
    FILE.write_text(render_table())
