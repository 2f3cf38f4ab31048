"""Measure RWKV-5 on one CPU thread: `python -m benchmarks.rwkv5 PART --json`.

The results are in `benchmarks/results/rwkv5.md`.

`speed`: the chunked form and the naive recurrence (T = 1024, width 256), and training of `rwkv5` and of a `gpt` with as
many parameters; alternating and in CPU seconds, so that other work on the machine affects all alike.
`memory`: peak memory of a training step on one row of 1k to 64k tokens, each in its own process.
`context`: memory and tokens per CPU second for rows of 1k to 8k, compared with `gpt`; `--picture FILE` draws it.
`generation`: time and memory of each of 100,000 tokens; `--picture FILE` draws it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from matplotlib.figure import Figure

from trainer.distributed.devices import get_peak_memory_bytes
from trainer.models import gpt, load_architecture, rwkv5
from trainer.models.base import LanguageModel
from trainer.ops.recurrence import chunked_recurrence, recurrence
from trainer.training.objective import Objective

VOCABULARY = 8192
LENGTHS = (1024, 4096, 16384, 65536)
CONTEXTS = (1024, 2048, 4096, 8192)
WAYS = {"truncated": (512, False), "through": (512, True), "whole": (0, False), "gpt": (0, False)}
"""Tokens of a chunk, and whether gradients pass through its start; `gpt` is the transformer, on whole rows."""
LABELS = {"truncated": "rwkv5-tiny, chunks of 512", "whole": "rwkv5-tiny, whole rows", "gpt": "gpt, whole rows"}
MAX_WHOLE = 4096  # the longest row that is also passed whole
MIB = 2**20


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rwkv5", description=__doc__)
    parser.add_argument("part", choices=("speed", "memory", "context", "row", "generation"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=100_000, help="of a generation, or of a row")
    parser.add_argument("--way", choices=tuple(WAYS), default="truncated", help="of a row")
    parser.add_argument("--picture", type=Path, help="SVG file to draw a generation or the contexts to")
    parser.add_argument("--json", action="store_true", help="print JSON (always)")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts: dict[str, Callable[[], Any]] = {
        "speed": lambda: {"forms": compare_forms(options.rounds), "training": compare_training(options.rounds)},
        "memory": lambda: measure_rows([(n, way) for n in LENGTHS for way in ("truncated", "through", "whole")]),
        "context": lambda: measure_rows([(n, way) for n in CONTEXTS for way in ("truncated", "whole", "gpt")]),
        "row": lambda: measure_row(options.tokens, options.way),
        "generation": lambda: measure_generation(options.tokens),
    }
    result = parts[options.part]()
    if options.picture:
        (draw_contexts if options.part == "context" else draw_generation)(result, options.picture)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 0


def build_rwkv5() -> rwkv5.Model:
    config = load_architecture("rwkv5-tiny").Config.sized(4, VOCABULARY, 256)
    return rwkv5.Model(config)  # type: ignore[arg-type]


def build_gpt(length: int) -> gpt.Model:
    """A `gpt` of about as many parameters, every block of which sees the whole row."""
    config = gpt.Config.sized(4, VOCABULARY, length)
    return gpt.Model(dataclasses.replace(config, value_embeddings=False, windows="L"))


def measure_alternating(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each contender by round, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            started = time.process_time()
            work()
            if number:
                seconds[name].append(time.process_time() - started)
    return seconds


def median_ratio(numerators: list[float], denominators: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))


# --- speed ------------------------------------------------------------------------------------------------------------


def compare_forms(rounds: int) -> dict[str, Any]:
    """Time the chunked and the naive form of the heads for one row of 1024 tokens at width 256."""
    inputs = [torch.randn(1, 4, 1024, 64) for _ in range(3)]
    inputs += [torch.randn(4, 64).sub(3).exp(), torch.randn(4, 64), torch.zeros(1, 4, 64, 64)]

    def forward_and_backward(form: Callable[..., Any]) -> None:
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        form(*leaves)[0].sum().backward()

    def forward(form: Callable[..., Any]) -> None:
        with torch.no_grad():
            form(*inputs)

    seconds = measure_alternating(
        {
            "naive": lambda: forward(run_naive),
            "chunked": lambda: forward(chunked_recurrence),
            "naive, backward too": lambda: forward_and_backward(run_naive),
            "chunked, backward too": lambda: forward_and_backward(chunked_recurrence),
        },
        rounds,
    )
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    gains = {"forward": median_ratio(seconds["naive"], seconds["chunked"])}
    gains["both"] = median_ratio(seconds["naive, backward too"], seconds["chunked, backward too"])
    return {"seconds": medians, "times_faster": gains}


def run_naive(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence, token by token."""
    r, k, v, rate, bonus, state = inputs
    outputs = []
    for t in range(r.size(2)):
        y, state = recurrence(r[:, :, t], k[:, :, t], v[:, :, t], rate, bonus, state)
        outputs.append(y)
    return torch.stack(outputs, dim=2), state


def compare_training(rounds: int) -> dict[str, Any]:
    """Time forward and backward of 8 rows of 256 tokens, with loss and head, for two models of equal size."""
    models: dict[str, LanguageModel] = {"rwkv5": build_rwkv5(), "gpt": build_gpt(256)}
    tokens = torch.randint(0, VOCABULARY, (8, 256))
    seconds = measure_alternating(
        {name: build_step(Objective(model), tokens) for name, model in models.items()}, rounds
    )
    return {
        name: {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "tokens_per_cpu_second": tokens.numel() / statistics.median(seconds[name]),
        }
        for name, model in models.items()
    } | {"gpt_speed_over_rwkv5s": median_ratio(seconds["rwkv5"], seconds["gpt"])}


def build_step(objective: Objective, tokens: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        objective(tokens, tokens).backward()
        objective.zero_grad(set_to_none=True)

    return step


# --- memory -----------------------------------------------------------------------------------------------------------


def measure_rows(cases: list[tuple[int, str]]) -> list[dict[str, Any]]:
    """Measure each length and way in its own process: the peak memory of a process only grows."""
    found = []
    for length, way in cases:
        if way != "whole" or length <= MAX_WHOLE:
            flags = ["row", "--tokens", str(length), "--way", way]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.rwkv5", *flags], capture_output=True, text=True, check=True
            )
            found.append(json.loads(done.stdout))
            sys.stderr.write(f"{found[-1]}\n")
    return found


def measure_row(length: int, way: str) -> dict[str, Any]:
    """Measure forward and backward over one row; memory is beyond that of the process with model and tokens."""
    chunk, through = WAYS[way]
    objective = Objective(build_gpt(length) if way == "gpt" else build_rwkv5(), chunk=chunk, full_gradients=through)
    tokens = torch.randint(0, VOCABULARY, (1, length))
    build_step(objective, tokens[:, :64])()  # allocates the libraries' memory
    before, started = psutil.Process().memory_info().rss, time.process_time()
    build_step(objective, tokens)()
    seconds = time.process_time() - started
    more = get_peak_memory_bytes(torch.device("cpu")) - before
    return {
        "tokens": length,
        "way": way,
        "mib": round(more / MIB, 1),
        "process_mib": round((before + more) / MIB, 1),
        "cpu_seconds": round(seconds, 2),
        "tokens_per_cpu_second": round(length / seconds),
    }


# --- generation -------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def measure_generation(tokens: int, points: int = 50) -> dict[str, Any]:
    """Generate greedily with an untrained model; return CPU milliseconds per token and memory over time."""
    model = build_rwkv5().eval()
    token, state, measured = torch.zeros(1, dtype=torch.int64), None, []
    for point in range(points):
        started = time.process_time()
        for _ in range(tokens // points):
            logits, state = model.step(token, state)
            token = logits.argmax(-1)
        milliseconds = (time.process_time() - started) / (tokens // points) * 1e3
        measured.append(
            {
                "tokens": (point + 1) * (tokens // points),
                "ms": milliseconds,
                "mib": psutil.Process().memory_info().rss / MIB,
            }
        )
    assert state is not None
    size = sum(each.nbytes for block in state for each in (block.time_shift, block.channel_shift, block.heads))
    return {"state_bytes": size, "points": measured}


# --- pictures ---------------------------------------------------------------------------------------------------------


def draw_generation(result: dict[str, Any], file: Path) -> None:
    """Draw milliseconds per token and memory over the number of tokens."""
    panels = {"ms": "CPU milliseconds a token", "mib": "memory of the process, MiB"}
    curves = {f"rwkv5-tiny, one thread, state of {result['state_bytes']:,} bytes": result["points"]}
    draw_panels(curves, panels, "tokens", file)


def draw_contexts(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw memory and speed over the length of the row, on a logarithmic scale."""
    panels = {"mib": "memory of a training step beyond the model, MiB", "tokens_per_cpu_second": "tokens a CPU second"}
    curves = {label: [row for row in rows if row["way"] == way] for way, label in LABELS.items()}
    draw_panels(curves, panels, "tokens in the row", file, xscale="log", xticks=CONTEXTS)


def draw_panels(
    curves: dict[str, list[dict[str, float]]], panels: dict[str, str], xlabel: str, file: Path, **axis: Any
) -> None:
    """Draw one panel for each key of `panels` (its title is the value), with one line for each curve."""
    figure = Figure(figsize=(6.4, 5.0), layout="constrained")
    for axes, (key, title) in zip(figure.subplots(len(panels), sharex=True), panels.items(), strict=True):
        for label, points in curves.items():
            axes.plot([point["tokens"] for point in points], [point[key] for point in points], label=label)
        axes.set(title=title, ylim=(0, None), **axis)
        axes.grid(axis="y", alpha=0.3)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()
    axes.set_xlabel(xlabel)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=len(curves), fontsize="small")
    figure.savefig(file, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    raise SystemExit(main())
