"""RWKV-5's figures: `python -m benchmarks.rwkv5 PART --json`, on one CPU thread. `docs/rwkv5.md` has what came of it.

`speed`: the chunked form beside the naive recurrence (T = 1024, width 256), and training of `rwkv5` beside `gpt` of as
many parameters; in turns, so that a slow minute is slow for all, and of CPU seconds, which others' work does not fill.
`memory`: the most memory of a training step on one row of 1k to 64k tokens, each in a process of its own.
`context`: the same and tokens a CPU second, rows of 1k to 8k, beside a `gpt` of as many parameters; `--picture FILE`.
`generation`: time and memory of each of 100,000 tokens, one after another; `--picture FILE` draws it.
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

from trainer.distributed.devices import get_peak_memory_bytes
from trainer.models import gpt, load_architecture, rwkv5
from trainer.models.base import LanguageModel
from trainer.training.objective import Objective

VOCABULARY = 8192
LENGTHS = (1024, 4096, 16384, 65536)
CONTEXTS = (1024, 2048, 4096, 8192)
WAYS = {"truncated": (512, False), "through": (512, True), "whole": (0, False), "gpt": (0, False)}
"""Chunk, and whether gradients pass through it; `gpt` is the transformer, on whole rows."""
WHOLE = 4096
"""The longest row that is also passed whole."""
MIB = 2**20


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rwkv5", description=__doc__)
    parser.add_argument("part", choices=("speed", "memory", "context", "row", "generation"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=100_000, help="of a generation, or of a row")
    parser.add_argument("--way", choices=tuple(WAYS), default="truncated", help="of a row")
    parser.add_argument("--picture", type=Path, help="where to draw a generation or the contexts, as SVG")
    parser.add_argument("--json", action="store_true", help="is what is printed in any case")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    parts: dict[str, Callable[[], Any]] = {
        "speed": lambda: {"forms": forms(options.rounds), "training": training(options.rounds)},
        "memory": lambda: rows([(n, way) for n in LENGTHS for way in ("truncated", "through", "whole")]),
        "context": lambda: rows([(n, way) for n in CONTEXTS for way in ("truncated", "whole", "gpt")]),
        "row": lambda: row(options.tokens, options.way),
        "generation": lambda: generation(options.tokens),
    }
    found = parts[options.part]()
    if options.picture:
        options.picture.write_text(contexts(found) if options.part == "context" else picture(found))
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


def tiny() -> rwkv5.Model:
    config = load_architecture("rwkv5-tiny").Config.sized(4, VOCABULARY, 256)
    return rwkv5.Model(config)  # type: ignore[arg-type]


def transformer(length: int) -> gpt.Model:
    """A `gpt` of about as many parameters, every block of which sees the whole row."""
    config = gpt.Config.sized(4, VOCABULARY, length)
    return gpt.Model(dataclasses.replace(config, value_embeddings=False, windows="L"))


def in_turns(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return CPU seconds of each, round by round, after one that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, work in contenders.items():
            started = time.process_time()
            work()
            if number:
                seconds[name].append(time.process_time() - started)
    return seconds


def ratio(above: list[float], below: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


# --- speed ------------------------------------------------------------------------------------------------------------


def forms(rounds: int) -> dict[str, Any]:
    """Chunked and naive form of the heads' work, for one row of 1024 tokens at width 256, forward and backward."""
    given = [torch.randn(1, 4, 1024, 64) for _ in range(3)]
    given += [torch.randn(4, 64).sub(3).exp(), torch.randn(4, 64), torch.zeros(1, 4, 64, 64)]

    def both(form: Callable[..., Any]) -> None:
        leaves = [tensor.clone().requires_grad_() for tensor in given]
        form(*leaves)[0].sum().backward()

    def forward(form: Callable[..., Any]) -> None:
        with torch.no_grad():
            form(*given)

    seconds = in_turns(
        {
            "naive": lambda: forward(naive),
            "chunked": lambda: forward(rwkv5.chunked_recurrence),
            "naive, backward too": lambda: both(naive),
            "chunked, backward too": lambda: both(rwkv5.chunked_recurrence),
        },
        rounds,
    )
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    gains = {"forward": ratio(seconds["naive"], seconds["chunked"])}
    gains["both"] = ratio(seconds["naive, backward too"], seconds["chunked, backward too"])
    return {"seconds": medians, "times_faster": gains}


def naive(*given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence, token by token."""
    r, k, v, rate, bonus, state = given
    read = []
    for t in range(r.size(2)):
        y, state = rwkv5.recurrence(r[:, :, t], k[:, :, t], v[:, :, t], rate, bonus, state)
        read.append(y)
    return torch.stack(read, dim=2), state


def training(rounds: int) -> dict[str, Any]:
    """Forward and backward of 8 rows of 256 tokens, loss and head included, by two models of as many parameters."""
    models: dict[str, LanguageModel] = {"rwkv5": tiny(), "gpt": transformer(256)}
    tokens = torch.randint(0, VOCABULARY, (8, 256))
    seconds = in_turns({name: stepper(Objective(model), tokens) for name, model in models.items()}, rounds)
    return {
        name: {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "tokens_per_cpu_second": tokens.numel() / statistics.median(seconds[name]),
        }
        for name, model in models.items()
    } | {"gpt_speed_over_rwkv5s": ratio(seconds["rwkv5"], seconds["gpt"])}


def stepper(objective: Objective, tokens: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        objective(tokens, tokens).backward()
        objective.zero_grad(set_to_none=True)

    return step


# --- memory -----------------------------------------------------------------------------------------------------------


def rows(wanted: list[tuple[int, str]]) -> list[dict[str, Any]]:
    """One process for each length and way: the most memory of a process only grows."""
    found = []
    for length, way in wanted:
        if way != "whole" or length <= WHOLE:
            flags = ["row", "--tokens", str(length), "--way", way]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.rwkv5", *flags], capture_output=True, text=True, check=True
            )
            found.append(json.loads(done.stdout))
            sys.stderr.write(f"{found[-1]}\n")
    return found


def row(length: int, way: str) -> dict[str, Any]:
    """Forward and backward over one row, with memory beyond that of the process with its model and its tokens."""
    chunk, through = WAYS[way]
    objective = Objective(transformer(length) if way == "gpt" else tiny(), chunk=chunk, through=through)
    tokens = torch.randint(0, VOCABULARY, (1, length))
    stepper(objective, tokens[:, :64])()  # the libraries' own memory
    before, started = psutil.Process().memory_info().rss, time.process_time()
    stepper(objective, tokens)()
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
def generation(tokens: int, points: int = 50) -> dict[str, Any]:
    """Greedy, from a model that has learned nothing: CPU milliseconds a token and the process's memory on the way."""
    model = tiny().eval()
    token, state, found = torch.zeros(1, dtype=torch.int64), None, []
    for point in range(points):
        started = time.process_time()
        for _ in range(tokens // points):
            logits, state = model.step(token, state)
            token = logits.argmax(-1)
        milliseconds = (time.process_time() - started) / (tokens // points) * 1e3
        found.append(
            {
                "tokens": (point + 1) * (tokens // points),
                "ms": milliseconds,
                "mib": psutil.Process().memory_info().rss / MIB,
            }
        )
    assert state is not None
    size = sum(each.nbytes for block in state for each in (block.time_shift, block.channel_shift, block.heads))
    return {"state_bytes": size, "points": found}


def picture(found: dict[str, Any]) -> str:
    """Draw milliseconds a token and memory over the tokens behind, each from zero."""
    points = found["points"]
    panels = "".join(
        panel(points, name, title, top)
        for name, title, top in (("ms", "CPU milliseconds a token", 56), ("mib", "memory of the process, MiB", 226))
    )
    last = points[-1]["tokens"]
    ticks = "".join(
        f'<text class="middle" x="{64 + 560 * part / 4:.0f}" y="376">{last * part // 4:,}</text>' for part in range(5)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 404" width="640" role="img">
<title>RWKV-5 writes {last:,} tokens at constant time and memory for each</title>
<style>
text{{font:13px system-ui,sans-serif;fill:#24292f;font-variant-numeric:tabular-nums}}
.paper{{fill:#fff}}.faint{{stroke:#d0d7de;stroke-width:1}}.end{{text-anchor:end}}.middle{{text-anchor:middle}}
.curve{{stroke:#0072b2;stroke-width:2;fill:none}}
@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}.paper{{fill:#0d1117}}.faint{{stroke:#30363d}}
.curve{{stroke:#56b4e9}}}}
</style>
<rect class="paper" width="640" height="404"/>
<text x="16" y="24">rwkv5-tiny, one thread, state of {found["state_bytes"]:,} bytes</text>
{panels}{ticks}
<text class="middle" x="344" y="396">tokens behind</text>
</svg>
"""


def panel(points: list[dict[str, float]], name: str, title: str, top: int) -> str:
    most, last = 1.25 * max(point[name] for point in points), points[-1]["tokens"]
    places = " ".join(
        f"{64 + 560 * point['tokens'] / last:.1f},{top + 130 * (1 - point[name] / most):.1f}" for point in points
    )
    drawn = f'<polyline class="curve" points="{places}"/>'
    return f'<text x="64" y="{top - 8}">{title}</text>{scale(most, top)}{drawn}\n'


def scale(most: float, top: int) -> str:
    """Draw three lines, at zero, half-way and the top."""
    drawn = ""
    for part in range(3):
        y, value = top + 130 * (1 - part / 2), most * part / 2
        written = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        drawn += f'<line class="faint" x1="64" x2="624" y1="{y:.1f}" y2="{y:.1f}"/>'
        drawn += f'<text class="end" x="56" y="{y + 4:.1f}">{written}</text>'
    return drawn


COLOURS = {"truncated": "rwkv", "whole": "whole", "gpt": "gpt"}
NAMES = {"truncated": "rwkv5-tiny, chunks of 512", "whole": "rwkv5-tiny, whole rows", "gpt": "gpt, whole rows"}


def contexts(found: list[dict[str, Any]]) -> str:
    """Draw memory and speed over the row's length, which is on a logarithmic scale."""
    panels = "".join(
        lines(found, name, title, top)
        for name, title, top in (
            ("mib", "memory of a training step beyond the model, MiB", 76),
            ("tokens_per_cpu_second", "tokens a CPU second", 246),
        )
    )
    ticks = "".join(
        f'<text class="end" x="{80 + 560 * place / (len(CONTEXTS) - 1):.0f}" y="396">{length:,}</text>'
        for place, length in enumerate(CONTEXTS)
    )
    legend = "".join(
        f'<line class="{COLOURS[way]}" x1="{16 + 212 * n}" x2="{40 + 212 * n}" y1="20" y2="20"/>'
        f'<text x="{46 + 212 * n}" y="24">{NAMES[way]}</text>'
        for n, way in enumerate(COLOURS)
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 424" width="640" role="img">
<title>Memory and speed of a training step against the length of its row: RWKV-5 and a transformer</title>
<style>
text{{font:13px system-ui,sans-serif;fill:#24292f;font-variant-numeric:tabular-nums}}
.paper{{fill:#fff}}.faint{{stroke:#d0d7de;stroke-width:1}}.end{{text-anchor:end}}.middle{{text-anchor:middle}}
.rwkv,.whole,.gpt{{stroke-width:2;fill:none;stroke:#0072b2}}.whole{{stroke-dasharray:5 4}}.gpt{{stroke:#d55e00}}
@media (prefers-color-scheme:dark){{text{{fill:#e6edf3}}.paper{{fill:#0d1117}}.faint{{stroke:#30363d}}
.rwkv,.whole{{stroke:#56b4e9}}.gpt{{stroke:#f0913a}}}}
</style>
<rect class="paper" width="640" height="424"/>
{legend}
{panels}{ticks}
<text class="middle" x="344" y="416">tokens in the row</text>
</svg>
"""


def lines(found: list[dict[str, Any]], name: str, title: str, top: int) -> str:
    most = 1.05 * max(float(one[name]) for one in found)
    drawn = []
    for way, colour in COLOURS.items():
        places = " ".join(
            f"{64 + 560 * CONTEXTS.index(one['tokens']) / (len(CONTEXTS) - 1):.1f},{top + 130 * share:.1f}"
            for one in found
            if one["way"] == way
            for share in [1 - one[name] / most]
        )
        drawn.append(f'<polyline class="{colour}" points="{places}"/>')
    return f'<text x="64" y="{top - 10}">{title}</text>{scale(most, top)}{"".join(drawn)}\n'


if __name__ == "__main__":
    raise SystemExit(main())
