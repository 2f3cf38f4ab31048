"""The parts, most valuable first: their commands on a GPU and, at a small size, on a CPU, and what is expected of them.

The expected figures are predictions: planned memory and kernels from a compiler that was given an H100's properties,
speeds from counted bytes and FLOPs. The deviations are the limits of `leaderboard.job_handlers.replays`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.expectations import Expectation, expect_profile

CLI = ("-m", "trainer.cli")
SMALL_SIZES = (
    *("--model.depth", "2", "--model.width", "32", "--model.heads", "2"),
    *("--train.sequence-length", "32", "--train.batch", "4", "--train.dev-tokens", "256", "--train.sample-tokens", "4"),
    *("--device", "cpu", "--threads", "1"),
)
SMALL_SHAPE = (
    *("--device", "cpu", "--threads", "1", "--shape", "2x32", "--sequence-length", "16", "--batch", "2"),
    *("--vocabulary-size", "300", "--repeats", "2"),
)
NIGHT = ("--preset", "daily-h100")
DEPTH_12 = (*NIGHT, "--model.depth", "12", "--train.batch", "128", "--train.micro-batch", "32")
SCORED_TOKENS = "2000000"


@dataclass(frozen=True)
class Part:
    name: str
    seconds: int  # limit on a GPU
    command: tuple[str, ...]  # arguments of Python; its standard output is JSON, except that of pytest
    small: tuple[str, ...]  # the same on a CPU
    expected: tuple[Expectation, ...] = ()


def list_parts(out: Path) -> tuple[Part, ...]:
    """Return the parts; `out` is where datasets and runs go."""
    data = ("--dataset", str(out / "dataset"))

    def profile(name: str, seconds: int, flags: tuple[str, ...], *expected: Expectation) -> Part:
        folder = ("--out", str(out / name))
        command = (*CLI, "profile", "--json", *flags, *data, *folder)
        small = (*CLI, "profile", "--json", "--steps", "2", *SMALL_SIZES, *data, *folder)
        return Part(name, seconds, command, small, expected)

    bench, repeats = (*CLI, "bench", "--json"), ("-m", "benchmarks.gpu.repeats", "--out", str(out / "repeats"))
    score = (*CLI, "score", "--json", str(out / "repeats" / "first"), *data)
    return (
        Part(
            "rates",
            60,
            ("-m", "benchmarks.gpu.rates"),
            ("-m", "benchmarks.gpu.rates", "--device", "cpu"),
            expect_rates(),
        ),
        Part("tests", 120, build_test_command("gpu"), build_test_command("not gpu and not slow"), (COUNT_PASSED,)),
        Part(
            "prepare",
            120,
            (*CLI, "prepare", "--json", "--quiet", *corpus("bpe:32768", "16MiB"), "--out", str(out / "dataset")),
            (*CLI, "prepare", "--json", "--quiet", *corpus("bpe:512", "1MiB"), "--out", str(out / "dataset")),
        ),
        profile("depth-12", 200, DEPTH_12, *expect_profile((430e3, 460e3), (0.35, 0.39))),
        profile(
            "depth-24",
            500,
            (*NIGHT, "--steps", "3"),
            *expect_profile((95e3, 101e3), (0.46, 0.49), gibibytes=(None, 75)),
        ),
        profile("full-windows-12", 200, (*DEPTH_12, "--model.windows", "L"), *expect_profile((430e3, 480e3))),
        profile("window-1024-12", 200, (*DEPTH_12, "--model.short_window", "1024"), *expect_profile((430e3, 480e3))),
        profile("fp8-12", 200, (*DEPTH_12, "--train.precision", "fp8"), *expect_profile((430e3, 540e3))),
        Part(
            "repeats",
            400,
            (*repeats, *DEPTH_12, *data),
            (*repeats, "--steps", "8", "--eager", *SMALL_SIZES, *data),
            (expect_deviation("replayed"), expect_deviation("killed")),
        ),
        Part(
            "score",
            300,
            (*score, "--limit-tokens", SCORED_TOKENS, "--device", "cuda"),
            (*score, "--limit-tokens", "2000", "--device", "cpu"),
            (
                Expectation("tokens", lambda content: content["tokens"]),
                Expectation("duration", lambda content: content["seconds"], None, 240, " s"),
                Expectation(
                    "correction for later tokens over its error",
                    lambda content: divide(**pick_look_ahead(content)),
                    -3,
                    3,
                    digits=1,
                ),
            ),
        ),
        Part(
            "graph-12",
            200,
            ("-m", "benchmarks.graphs", "--device", "cuda", "--arch", "gpt", "--compile"),
            ("-m", "benchmarks.graphs", "--arch", "gpt", "--rounds", "1"),
            (
                Expectation(
                    "time of the graph over the module's",
                    lambda content: content["graph_over_module"],
                    0.99,
                    1.01,
                    digits=3,
                ),
            ),
        ),
        profile("rwkv5-12", 500, (*DEPTH_12, "--arch", "rwkv5", "--train.micro-batch", "16"), *expect_profile()),
        Part(
            "loss",
            60,
            ("-m", "benchmarks.loss", "--device", "cuda"),
            ("-m", "benchmarks.loss", "--smoke"),
            tuple(
                Expectation(
                    f"{name}, seconds", lambda content, name=name: find_seconds(content["losses"], name), digits=4
                )
                for name in ("in chunks", "torch", "all at once")
            ),
        ),
        Part(
            "optimizers",
            60,
            ("-m", "benchmarks.optimizers", "--device", "cuda"),
            ("-m", "benchmarks.optimizers", "--smoke"),
            (Expectation("seconds of the recipe's step", lambda c: find_seconds(c["optimizers"], "recipe"), digits=4),),
        ),
        Part(
            "bench-1024",
            300,
            (*bench, "--device", "cuda", "--compile", "--seconds", "240"),
            (*bench, *SMALL_SHAPE, "--only", "gpt,torch"),
            (expect_ratio(),),
        ),
        Part(
            "bench-2048",
            200,
            (
                *(*bench, "--device", "cuda", "--compiled-only", "--only", "nanogpt,gpt,litgpt"),
                *("--sequence-length", "2048", "--batch", "16", "--seconds", "120"),
            ),
            (*bench, *SMALL_SHAPE, "--only", "gpt"),
            (expect_ratio(),),
        ),
    )


def corpus(tokenizer: str, limit: str) -> tuple[str, ...]:
    return ("--corpus", "python-library", "--tokenizer", tokenizer, "--limit-bytes", limit)


def build_test_command(marker: str) -> tuple[str, ...]:
    """Run the trainer's tests without the site's plugins, which the machine may lack."""
    settings = ("-c", "benchmarks/gpu/pytest.ini", "--rootdir", ".", "--confcutdir", "tests/trainer")
    plugins = ("-p", "no:cacheprovider", "-p", "no:django")
    return ("-m", "pytest", "-q", *plugins, *settings, "-m", marker, "tests/trainer/ops/test_attention.py")


def count_passed(content: dict[str, Any]) -> float | None:
    found = re.search(r"(\d+) passed", content["last_line"])
    return float(found[1]) if found else None


COUNT_PASSED = Expectation("tests passed", count_passed, 1)


def expect_rates() -> tuple[Expectation, ...]:
    products = (
        Expectation(
            f"matrix product, {name}",
            lambda content, name=name: content["products"][name] / 1e12,
            550,
            750,
            " TFLOP/s",
        )
        for name in ("attention projection", "MLP up", "MLP down", "gradient of MLP up", "head of a chunk")
    )
    attention = (
        Expectation(
            f"attention, window {window}, {direction}",
            lambda content, window=window, direction=direction: content["attention"][window][direction] * 1e3,
            0.7 * predicted,
            1.3 * predicted,
            " ms",
            digits=2,
        )
        for window, direction, predicted in (
            ("full", "forward", 0.45),
            ("full", "backward", 1.3),
            ("1024", "forward", 0.5),
            ("1024", "backward", 1.45),
        )
    )
    return (
        *products,
        Expectation("copy", lambda content: content["copy"] / 1e12, 2.7, 3.3, " TB/s", digits=2),
        *attention,
        Expectation("precision is bf16", lambda content: float(content["precision"] == "bf16"), 1, 1),
    )


def expect_deviation(name: str) -> Expectation:
    return Expectation(f"deviation, {name}", lambda content: content[name]["deviation"], 0, 0.1, digits=4)


def expect_ratio() -> Expectation:
    return Expectation("gpt over the best peer", lambda content: find_ratio(content, "gpt"), 1, None, digits=3)


def find_ratio(content: dict[str, Any], name: str) -> float | None:
    ratios = [row["ratio_to_best_peer"] for row in content["contenders"] if row["name"].startswith(name)]
    return max((ratio for ratio in ratios if ratio is not None), default=None)


def find_seconds(results: dict[str, dict[str, Any]], name: str) -> float | None:
    return results.get(name, {}).get("seconds")


def pick_look_ahead(content: dict[str, Any]) -> dict[str, float]:
    found = content["checks"]["look_ahead"]
    return {"correction": found["nats_per_token"], "error": found["stderr"]}


def divide(correction: float, error: float) -> float | None:
    return correction / error if error else None
