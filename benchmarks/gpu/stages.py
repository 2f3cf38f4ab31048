"""The stages, most valuable first.

Seconds, memory and what is expected are what an H200 did (`benchmarks/results/gpu.md`). Where no GPU has run a stage,
seconds and memory are guesses, by which it is planned, and nothing is expected.
"""

from __future__ import annotations

from benchmarks.gpu import night, runs, two_processes
from benchmarks.gpu.card import measure_card
from benchmarks.gpu.memory import measure_memory
from benchmarks.gpu.schedule import Stage
from benchmarks.gpu.steps import measure_nanochat, measure_plain_torch, measure_steps

FP8 = ("--train.precision", "fp8")
NO_FIGURE = "not measured yet"
STAGES = (
    Stage("dataset", 60, 0, runs.prepare_dataset, "on the CPU, unless it was carried along", ()),
    Stage(
        "card",
        8,
        40,
        measure_card,
        "bf16 680-760 TFLOP/s, fp8 1,100-1,360; attention 0.41 / 1.3 ms, with windows of 512"
        " 0.43 / 1.1; every error below 0.003",
        (),
        waiting_gib=1,
        peak_gib=16,
    ),
    Stage("tests", 2, 25, runs.run_gpu_tests, "all pass: also the allocator's setting", (), waiting_gib=1),
    Stage(
        "d24",
        225,
        28,
        measure_steps(24, 256, 16, 3),
        "112k tokens/s, MFU .54, peak 61.7 GiB",
        waiting_gib=5,
        peak_gib=62.5,
    ),
    Stage(
        "nanochat-d24",
        135,
        24,
        measure_nanochat(24, 256, 16, 3),
        "111k tokens/s with FA3, peak 58.8 GiB",
        waiting_gib=5,
        peak_gib=60,
    ),
    Stage("d24-fp8", 430, 28, measure_steps(24, 256, 16, 3, *FP8), NO_FIGURE, waiting_gib=5, peak_gib=62.5),
    Stage("d12", 105, 24, measure_steps(12, 128, 32, 6, parity=True), "580k tokens/s, MFU .445, 26.9 GiB", peak_gib=28),
    Stage("nanochat-d12", 78, 8, measure_nanochat(12, 128, 32, 6), "572k tokens/s with FA3", peak_gib=30),
    Stage(
        "d12-fp8",
        190,
        24,
        measure_steps(12, 128, 32, 6, *FP8, parity=True),
        "loss 0.005 above that of d12",
        peak_gib=28,
    ),
    Stage("torch-d12", 70, 12, measure_plain_torch(12, 16, 6), NO_FIGURE, peak_gib=30),
    Stage("train", 125, 75, runs.train, "no spike, the dev loss falls; tokens/s as d12", peak_gib=30),
    Stage("score", 10, 45, runs.score, NO_FIGURE, ("train",), waiting_gib=1),
    Stage(
        "memory",
        15,
        40,
        measure_memory,
        "errors below 1e-5, equal twice and in one pass, no wait for the GPU; at 2^26 rows nearly the seconds of 2^16",
        peak_gib=30,
    ),
    Stage("rwkv5", 235, 10, measure_steps(4, 32, 16, 4, "--arch", "rwkv5"), "1.56M tokens/s, MFU .11"),
    Stage(
        "d12-memory",
        130,
        14,
        measure_steps(12, 128, 32, 6, "--model.memory_rows", "1048576"),
        "d12 with a table of 6.4 GB; 5.6 % more CPU time at 2x128",
        waiting_gib=8,
        peak_gib=45,
    ),
    Stage("torch-d24", 110, 20, measure_plain_torch(24, 8, 3), NO_FIGURE, waiting_gib=5, peak_gib=50),
    Stage("resume", 5, 150, runs.resume, "deviations below 0.1", waiting_gib=0, peak_gib=10, shares_gpu=True),
    Stage(
        "replays",
        60,
        110,
        runs.measure_replays,
        "0 on the machine itself, below 0.1 between CPU and GPU in fp32; more in bf16",
        waiting_gib=0,
        peak_gib=4,
        shares_gpu=True,
    ),
    Stage(
        "law",
        120,
        60,
        runs.compare_with_law,
        "less than three standard deviations off",
        waiting_gib=0,
        peak_gib=4,
        shares_gpu=True,
    ),
    Stage(
        "night",
        5,
        160,
        night.rehearse_night,
        "main is scored and on the board",
        waiting_gib=0,
        peak_gib=12,
        shares_gpu=True,
    ),
    Stage(
        "two-processes",
        5,
        200,
        two_processes.compare_strategies,
        "losses of one process within 0.001; a compiled graph stays one graph",
        waiting_gib=0,
        peak_gib=16,
        shares_gpu=True,
    ),
    Stage("d20", 190, 24, measure_steps(20, 256, 16, 3), "130-150k tokens/s, predicted", waiting_gib=5, peak_gib=52),
    Stage("nanochat-d20", 115, 20, measure_nanochat(20, 256, 16, 3), NO_FIGURE, waiting_gib=5, peak_gib=50),
    Stage("torch-d20", 95, 16, measure_plain_torch(20, 8, 3), NO_FIGURE, waiting_gib=5, peak_gib=45),
    Stage("d20-fp8", 360, 24, measure_steps(20, 256, 16, 3, *FP8), NO_FIGURE, waiting_gib=5, peak_gib=52),
)
