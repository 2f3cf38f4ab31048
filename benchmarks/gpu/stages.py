"""The stages, most valuable first, and what is expected of them: what an H200 did, else what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu import night, runs, two_processes
from benchmarks.gpu.card import measure_card
from benchmarks.gpu.memory import measure_memory
from benchmarks.gpu.steps import measure_nanochat, measure_plain_torch, measure_steps


@dataclass(frozen=True)
class Stage:
    name: str
    seconds: float  # limit of its process on a GPU, without waiting for its turn
    work: Callable[[], None]
    expected: str
    after: tuple[str, ...] = ()  # stages that must have ended before this one starts
    needs_whole_memory: bool = False  # of an H100: no other process may hold any while it runs
    shares_gpu: bool = False  # compares results: others that do may run at once, in gaps between those that are timed


SLICE = ("--model.width", "1536", "--model.heads", "12")  # layers of depth 24 that compile in a third of the time
DATA = ("dataset",)
STAGES = (
    Stage("dataset", 160, runs.prepare_dataset, "on the CPU, unless it was carried along"),
    Stage(
        "card",
        90,
        measure_card,
        "bf16 680-760 TFLOP/s, fp8 1,100-1,360; attention 0.41 / 1.3 ms, with windows of 512"
        " 0.43 / 1.1; every error below 0.003",
    ),
    Stage("train", 240, runs.train, "no spike, the dev loss falls; tokens/s as d12", ("dataset", "card")),
    Stage("d12", 200, measure_steps(12, 128, 32, 6), "580k tokens/s, MFU .445, peak 26.9 GiB", DATA),
    Stage("nanochat-d12", 200, measure_nanochat(12, 128, 32, 6), "572k tokens/s with FA3", DATA),
    Stage(
        "d24",
        420,
        measure_steps(24, 256, 16, 3),
        "112k tokens/s, MFU .54, peak 61.7 GiB",
        DATA,
        needs_whole_memory=True,
    ),
    Stage(
        "d24-fp8",
        420,
        measure_steps(24, 256, 16, 3, "--train.precision", "fp8"),
        "1.2 times d24; compiles for minutes",
        DATA,
        needs_whole_memory=True,
    ),
    Stage(
        "nanochat-d24",
        260,
        measure_nanochat(24, 256, 16, 3),
        "111k tokens/s with FA3",
        DATA,
        needs_whole_memory=True,
    ),
    Stage("slice", 220, measure_steps(8, 64, 16, 5, *SLICE, parity=True), "the baseline of the slices", DATA),
    Stage(
        "slice-fp8",
        240,
        measure_steps(8, 64, 16, 5, *SLICE, "--train.precision", "fp8", parity=True),
        "1.20 x slice, loss 0.005 above its",
        DATA,
    ),
    Stage(
        "memory",
        90,
        measure_memory,
        "errors below 1e-5, equal twice and in one pass, no wait for the GPU; at 2^26 rows nearly the seconds of 2^16"
        " (on a CPU 7.2 and 4.9 ms for 4,096 tokens)",
    ),
    Stage(
        "d12-memory",
        220,
        measure_steps(12, 128, 32, 6, "--model.memory_rows", "1048576"),
        "d12 with a table of 6.4 GB: no prediction; 5.6 % more CPU time at 2x128",
        ("dataset", "d12"),
    ),
    Stage("rwkv5", 220, measure_steps(4, 32, 16, 4, "--arch", "rwkv5"), "1.56M tokens/s, MFU .11", DATA),
    Stage("tests", 120, runs.run_gpu_tests, "all pass: also the allocator's setting", shares_gpu=True),
    Stage(
        "replays",
        240,
        runs.measure_replays,
        "0 on the machine itself, below 0.1 between CPU and GPU in fp32; more in bf16",
        DATA,
        shares_gpu=True,
    ),
    Stage("score", 200, runs.score, "> 20k tokens/s", ("train",)),
    Stage("resume", 240, runs.resume, "deviations below 0.1", ("dataset", "train"), shares_gpu=True),
    Stage("night", 230, night.rehearse_night, "main is scored and on the board", ("train",), shares_gpu=True),
    Stage(
        "two-processes",
        300,
        two_processes.compare_strategies,
        "losses of one process within 0.001; a compiled graph stays one graph",
        ("dataset", "train"),
        shares_gpu=True,
    ),
    Stage("torch-d12", 150, measure_plain_torch(12, 16, 6), "no prediction", DATA),
    Stage("d20", 300, measure_steps(20, 256, 16, 3), "130-150k tokens/s", ("dataset", "nanochat-d24")),
)
