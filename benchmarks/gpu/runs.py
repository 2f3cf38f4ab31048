"""Whole runs by the command line: training, scoring, quantizing, resuming, replays, and tests that need a GPU."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import json
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.gpu.stage import (
    Turn,
    compute_error,
    emit,
    get_dataset,
    get_device,
    get_folder,
    is_rehearsal,
    measure_ms,
    run_python,
    skip,
    wait_for_turn,
)
from benchmarks.gpu.steps import build_flags, build_run
from trainer.checkpoint.store import get_checkpoint_path
from trainer.cli import score as score_command
from trainer.models import load_architecture
from trainer.ops.quantize import quantize
from trainer.scoring.compare_replay import compare_checkpoints
from trainer.scoring.multiplier.ladder import Ladder
from trainer.training import loop
from trainer.training.run import StopRequest

CLI = ("-m", "trainer.cli")
FEW_EVALUATIONS = ("--train.evaluations", "1", "--train.dev-tokens", "8192")
TRAINED = "runs/train/result.json"
REPLAYED_PRECISIONS = ("fp32", "bf16")  # a replay has the run's own


def prepare_dataset() -> None:
    """Prepare the dataset of all stages, on the CPU, unless one is there."""
    if get_dataset().exists():
        return
    tokenizer, limit = ("bpe:512", "1MiB") if is_rehearsal() else ("bpe:32768", "16MiB")
    library = sysconfig.get_path("stdlib")
    corpus = f"files:{library}/*.py,{library}/*/*.py"  # 25 MB of text
    source = ("--corpus", corpus, "--tokenizer", tokenizer, "--limit-bytes", limit)
    code, _, seconds = run_python(*CLI, "prepare", "--quiet", *source, "--out", str(get_dataset()), seconds=150)
    emit(code=code, wall_s=round(seconds, 1))
    raise SystemExit(code)


def train() -> None:
    """A run on real text: its curve, compile time and checkpoints, at the shapes of the stage `d12`."""
    turn, budget = Turn(), "6steps" if is_rehearsal() else "60s"
    flags = [*build_flags(12, 128, 32), "--budget", budget, "--train.evaluations", "5", "--checkpoint-every", "30s"]
    run = build_run(turn, flags, is_evaluated=True)
    try:
        with StopRequest() as stop:
            code = loop.fit_and_finish(run, Console(stderr=True), stop)
    finally:
        run.loader.close()
        run.writer.close()
    turn.emit_compilations()
    lines = read_metrics(run.config.out)
    names = ("kind", "step", "tokens", "seconds", "loss", "bits_per_byte", "tokens_per_second", "mfu", "memory_bytes")
    for line in lines:
        if line["kind"] == "dev" or line["step"] == lines[-1]["step"]:
            emit(**{name: line[name] for name in names if name in line})
    emit(result={name: value for name, value in read_result(run.config.out).items() if not isinstance(value, dict)})
    raise SystemExit(code)


def read_result(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "result.json").read_text()))


def read_metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def score() -> None:
    """The scorer on that run: the rates of its passes over text, and of those of its check for later tokens."""
    wait_for_turn()
    times: dict[str, list[float]] = {}

    def note_pass(phase: str, _: float) -> None:
        times.setdefault(phase, []).append(time.monotonic())

    score_command.show_progress = lambda: contextlib.nullcontext(note_pass)
    limit = "1000" if is_rehearsal() else "8192"
    command = [str((get_folder() / TRAINED).parent), "--dataset", str(get_dataset()), "--limit-tokens", limit]
    record = score_command.score(score_command.parse_arguments([*command, "--device", get_device().type]))
    for phase in ("scoring", "checking for later tokens"):
        seconds = times[phase][-1] - times[phase][0]  # from the end of the first pass to that of the last
        emit(phase=phase, passes=len(times[phase]), seconds=seconds, passes_per_s=(len(times[phase]) - 1) / seconds)
        if phase == "scoring":
            emit(text_tokens_per_s=record["tokens"] / seconds * (1 - 1 / len(times[phase])))
    emit(tokens=record["tokens"], all_s=record["seconds"], bits_per_byte=record["bits_per_byte"])
    emit(look_ahead=record["checks"]["look_ahead"])


def measure_quantized() -> None:
    """Error of a model's logits in 8 and 4 bits beside bf16, and the milliseconds of a row."""
    if importlib.util.find_spec("bitsandbytes") is None:
        skip("bitsandbytes is not installed")
    wait_for_turn()
    device, (depth, length) = get_device(), (2, 64) if is_rehearsal() else (12, 2048)
    module = load_architecture("gpt")
    model = module.Model(module.Config.sized(depth, 32768, length)).bfloat16()
    tokens, wanted = torch.randint(32768, (1, length), device=device), None
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))  # branches begin at zero
        for kind in ("bf16", "8bit", "4bit"):
            found = copy.deepcopy(model).to(device) if kind == "bf16" else quantize(copy.deepcopy(model), kind, device)
            wanted = found(tokens) if wanted is None else wanted
            ms = round(measure_ms(lambda found=found: found(tokens)), 2)
            emit(weights=kind, error=compute_error(found(tokens), wanted), row_ms=ms)


def compare_with_ladder() -> None:
    """The loss over compute of a ladder of runs on the CPU, with its noise, beside runs on the GPU."""
    full, (depth, width, length) = (2e9, (1, 64, 64)) if is_rehearsal() else (4e12, (2, 128, 256))
    flags = [f"--model.depth={depth}", f"--model.width={width}", f"--train.sequence-length={length}"]
    flags += ["--model.heads=1", "--train.batch=8", "--train.micro-batch=8", "--dataset", str(get_dataset())]
    flags += ["--train.sample-tokens=0", "--train.evaluations=1", "--threads", "1" if is_rehearsal() else "2"]
    folder = get_folder() / "runs/ladder"
    shutil.rmtree(folder, ignore_errors=True)

    def train_runs(place: str, runs: Sequence[tuple[float, int]], *more: str) -> list[tuple[float, float]]:
        """Train for these shares of the budget with these seeds, at once; return FLOPs and bits per byte."""
        folders = [folder / f"{place} {share} {seed}" for share, seed in runs]
        own = [[*flags, *more, f"--seed={seed}", f"--budget={share * full:.0f}flops"] for share, seed in runs]
        processes = [start_training(*pair) for pair in zip(folders, own, strict=True)]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"a run on the {place} failed")
        return [(result["train_flops"], result["bits_per_byte"]) for result in map(read_result, folders)]

    exact = ("--device=cpu", "--train.precision=fp32", "--train.compile=false")
    rungs = train_runs("CPU", [(share, seed) for share in (0.25, 0.5, 1.0, 2.0) for seed in (1, 2)], *exact)
    ladder = Ladder.fit(*np.array(rungs).T, full)
    wait_for_turn()
    own = exact if is_rehearsal() else ("--device=cuda",)  # a GPU's own precision, compiled
    for compute, found in train_runs("GPU", [(0.5, 3), (1.0, 3), (1.0, 4), (2.0, 3)], *own):
        x = np.log(compute / full)
        expected, error = float(ladder.loss_at(x)), float(ladder.sigma * np.sqrt(1 + ladder.leverage(x)))
        emit(flops=compute, bits_per_byte=found, ladder=expected, stderr=error, deviations=(found - expected) / error)


def measure_replays() -> None:
    """A run by CPU or GPU whose second half the other replays: the deviation by which a site judges a replay."""
    steps, depth, width, length = (4, 1, 64, 64) if is_rehearsal() else (60, 3, 192, 256)
    flags = ["--model.depth", str(depth), "--model.width", str(width), "--model.heads", str(max(1, width // 64))]
    flags += ["--train.sequence-length", str(length), "--train.batch", "8", "--train.micro-batch", "8"]
    flags += ["--train.dev-tokens", "4096", "--train.sample-tokens", "0", "--dataset", str(get_dataset())]
    flags += ["--train.compile", "false", "--budget", f"{steps}steps", "--checkpoint-every", f"{steps // 2}steps"]
    flags += ["--keep", "9", "--threads", "1" if is_rehearsal() else "4", "--train.muon-precision", "bf16"]
    folder = get_folder() / "runs/replays"
    shutil.rmtree(folder, ignore_errors=True)

    def build_options(place: str, precision: str) -> list[str]:
        device = "cpu" if place == "CPU" else get_device().type
        return [*flags, "--device", device, "--train.precision", precision]

    for place in ("CPU", "GPU"):
        if place == "GPU":
            wait_for_turn()
        for precision in REPLAYED_PRECISIONS:
            out = folder / f"{place} {precision}"
            train_with(out, build_options(place, precision))
    for precision in REPLAYED_PRECISIONS:
        for claimed, place in (("CPU", "GPU"), ("GPU", "CPU"), ("GPU", "GPU")):
            first, again = folder / f"{claimed} {precision}", folder / f"{claimed} {precision} by {place}"
            start, end = (get_checkpoint_path(first, step) for step in (steps // 2, steps))
            replay(again, start, end, steps, build_options(place, precision))
            found = compare_checkpoints(start, end, get_checkpoint_path(again, steps))
            emit(claimed=claimed, replayed=place, precision=precision, **found._asdict())


def start_training(out: Path, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "trainer.train", *flags, "--out", str(out)], stdout=sys.stderr)


def train_with(out: Path, flags: Sequence[str]) -> None:
    """Train, or go on with a run, to its end."""
    if code := start_training(out, flags).wait():
        raise SystemExit(f"the run {out.name} ended with code {code}")


def replay(out: Path, start: Path, end: Path, steps: int, flags: Sequence[str]) -> None:
    """Train once more from the checkpoint `start` to step `steps`, as nodes do."""
    shutil.copytree(start, out / "checkpoints" / start.name)
    recorded = out / "recorded.json"
    state = json.loads((end / "state.json").read_text())
    recorded.write_text(json.dumps({"clock": state["clock"], "train": state["identity"]["train"]}))
    command = ("-m", "trainer.training.replay", "--until", str(steps), "--recorded-state", str(recorded))
    code, _, _ = run_python(*command, *flags, "--out", str(out), seconds=230)
    if code:
        raise SystemExit(f"the replay {out.name} ended with code {code}")


def resume() -> None:
    """A run, its second half replayed, and one that is killed and resumed, compared as a node's replay is."""
    wait_for_turn()
    steps, folder = 8 if is_rehearsal() else 24, get_folder() / "runs/resume"
    shutil.rmtree(folder, ignore_errors=True)
    flags = build_flags(4, 16, 16, "--model.width", "768", "--model.heads", "6", *FEW_EVALUATIONS)
    flags += ["--budget", f"{steps}steps", "--checkpoint-every", f"{steps // 2}steps", "--keep", "9"]
    first, replayed, killed = (folder / name for name in ("first", "replayed", "killed"))
    train_with(first, flags)
    start, end = (get_checkpoint_path(first, step) for step in (steps // 2, steps))
    replay(replayed, start, end, steps, flags)
    process, middle = start_training(killed, flags), get_checkpoint_path(killed, steps // 2)
    while not middle.exists() and process.poll() is None:
        time.sleep(0.2)
    process.kill()
    process.wait()
    if not middle.exists():
        raise SystemExit("the run to be killed ended without a checkpoint")
    train_with(killed, flags)
    for again in (replayed, killed):
        found = compare_checkpoints(start, end, get_checkpoint_path(again, steps))
        emit(compared=again.name, steps=steps, **found._asdict())


def run_gpu_tests() -> None:
    """The trainer's tests that need a GPU, without the site's plugins, which the machine may lack."""
    wait_for_turn()
    marker = "not gpu and not slow" if is_rehearsal() else "gpu or processes"  # the latter: the allocator
    names = ("ops/test_attention", "distributed/test_devices", "checkpoint/test_host_buffers")
    files = [f"tests/trainer/{name}.py" for name in names]
    settings = ("-c", "benchmarks/gpu/pytest.ini", "--rootdir", ".", "--confcutdir", "tests/trainer")
    plugins = ("-p", "no:cacheprovider", "-p", "no:django")
    code, text, seconds = run_python("-m", "pytest", "-q", *plugins, *settings, "-m", marker, *files, seconds=330)
    emit(code=code, wall_s=round(seconds, 1), last_lines=text.strip().splitlines()[-3:])
    raise SystemExit(code)
