"""The stages, most valuable first.

Figures that are expected are an H200's (`benchmarks/results/gpu.md`), other expectations what must hold. Seconds and
memory, by which stages are planned, are guesses but for those in `HAVE_RUN`.
"""

from __future__ import annotations

from benchmarks.gpu import night, runs, two_processes
from benchmarks.gpu.card import measure_card
from benchmarks.gpu.memory import measure_memory
from benchmarks.gpu.schedule import Stage
from benchmarks.gpu.steps import measure_nanochat, measure_plain_torch, measure_steps

FP8 = ("--train.precision", "fp8")
NO_FIGURE = "not measured yet"
STEPS = "errors below 1e-5, equal twice and in one pass, no wait for the GPU"
RATES = (
    "bf16 680-760 TFLOP/s, fp8 1,100-1,360; attention 0.41 / 1.3 ms, by windows of 512 0.43 / 1.1; errors below 0.003"
)
TRAINS = "no spike, the dev loss falls; tokens/s as d12"
MEMORY = ("--model.memory_rows", "1048576")
HAVE_RUN = {"card", "tests", "d24", "nanochat-d24", "d12", "nanochat-d12", "train", "rwkv5"}
STAGES = (
    Stage("dataset", 60, 0, 0, 0, runs.prepare_dataset, "on the CPU, unless it is there", (), product="dataset"),
    Stage("card", 8, 40, 1, 16, measure_card, RATES, ()),
    Stage("tests", 2, 25, 1, 8, runs.run_gpu_tests, "all pass: also the allocator's setting", ()),
    Stage("d24-fp8", 430, 28, 5, 62.5, measure_steps(24, 256, 16, 3, *FP8), NO_FIGURE),
    Stage("d24", 225, 45, 5, 62.5, measure_steps(24, 256, 16, 3), "112k tokens/s, MFU .54, peak 61.7 GiB"),
    Stage("nanochat-d24", 135, 24, 5, 60, measure_nanochat(24, 256, 16, 3), "111k tokens/s with FA3, 58.8 GiB"),
    Stage("d12", 105, 24, 1.5, 28, measure_steps(12, 128, 32, 6, parity=True), "580k tokens/s, MFU .445, 26.9 GiB"),
    Stage("nanochat-d12", 78, 8, 1.5, 30, measure_nanochat(12, 128, 32, 6), "572k tokens/s with FA3"),
    Stage("d12-fp8", 190, 24, 1.5, 28, measure_steps(12, 128, 32, 6, *FP8, parity=True), NO_FIGURE),
    Stage("torch-d12", 70, 12, 1.5, 30, measure_plain_torch(12, 16, 6), NO_FIGURE),
    Stage("train", 125, 75, 1.5, 30, runs.train, TRAINS, product=runs.TRAINED),
    Stage("score", 10, 45, 1, 8, runs.score, NO_FIGURE, ("dataset", "train")),
    Stage("memory", 15, 40, 1.5, 30, measure_memory, STEPS),
    Stage("rwkv5", 235, 10, 1.5, 8, measure_steps(4, 32, 16, 4, "--arch", "rwkv5"), "1.56M tokens/s, MFU .11"),
    Stage("d12-memory", 130, 14, 8, 45, measure_steps(12, 128, 32, 6, *MEMORY), NO_FIGURE),
    Stage("torch-d24", 110, 20, 5, 50, measure_plain_torch(24, 8, 3), NO_FIGURE),
    Stage("quantized", 8, 10, 0.5, 4, runs.measure_quantized, "errors 0.024 and 0.145; 26 and 36 ms", ()),
    Stage("resume", 5, 150, 0, 10, runs.resume, "deviations below 0.1", shares_gpu=True),
    Stage("replays", 60, 110, 0, 4, runs.measure_replays, NO_FIGURE, shares_gpu=True),
    Stage("ladder", 120, 60, 0, 6, runs.compare_with_ladder, "at most three standard deviations off", shares_gpu=True),
    Stage("night", 5, 160, 0, 12, night.rehearse_night, "main is scored and on the board", shares_gpu=True),
    Stage("two-processes", 5, 200, 0, 16, two_processes.compare_strategies, "losses as one", shares_gpu=True),
    Stage("d20", 190, 24, 5, 52, measure_steps(20, 256, 16, 3), NO_FIGURE),
    Stage("nanochat-d20", 115, 20, 5, 50, measure_nanochat(20, 256, 16, 3), NO_FIGURE),
    Stage("torch-d20", 95, 16, 5, 45, measure_plain_torch(20, 8, 3), NO_FIGURE),
    Stage("d20-fp8", 360, 24, 5, 52, measure_steps(20, 256, 16, 3, *FP8), NO_FIGURE),
)
