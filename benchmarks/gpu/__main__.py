"""Run the stages that are not done yet, in nine minutes: one call, then a shorter one for the best of what is left.

Each stage is a process. They compile at once on the machine's cores, and take turns on the GPU (`schedule.py`), so that
no figure is disturbed by another stage and the GPU does not wait for compilers. Each figure is one JSON line in
`results.jsonl` as soon as it is known. A stage that fails or exceeds its limit stops no other.

Figures, logs, caches and runs are in `benchmarks/out/gpu`; `--out` names a folder that gets each figure at once too,
and logs at the end. SIGTERM ends all stages, as Ctrl-C does; if this process is killed, they end too.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from benchmarks.gpu import night, steps
from benchmarks.gpu.schedule import Stage, choose_starts, choose_turns, expect_ready
from benchmarks.gpu.stage import FOLDER, OUT, REHEARSAL, RESULTS, SKIPPED, STAGE, write_line
from benchmarks.gpu.stages import HAVE_RUN, STAGES

STATE = Path("benchmarks/out/gpu")
ENDING = 6.0  # seconds reserved for the summary
RESERVED_GIB = 1.0  # of the GPU's memory, for its driver
LIMIT_FACTOR, LIMIT_EXTRA = 1.5, 60.0  # a stage is killed after so much more than its expected seconds
TURN_FACTOR, TURN_EXTRA = 3, 20.0  # the same for its turn, by which it keeps the GPU from others
REHEARSAL_FACTOR = 3  # of limits, on a CPU
DISABLING = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
PR_SET_PDEATHSIG = 1
LOG_TAIL = 60_000  # bytes of each log that are copied


@dataclass
class Process:
    stage: Stage
    process: subprocess.Popen[bytes]
    started: float


class Driver:
    """Starts stages, gives them their turns and ends them."""

    def __init__(
        self,
        folder: Path,
        stages: Sequence[Stage],
        seconds: float,
        is_rehearsal: bool,
        only: Collection[str] = (),
        out: Path | None = None,
    ) -> None:
        self.folder, self.is_rehearsal, self.out = folder, is_rehearsal, out
        self.has_choice = bool(only)
        self.end_time = time.monotonic() + seconds - ENDING
        self.pending = list_pending(folder, stages, only)
        names = {stage.name for stage in self.pending}
        self.ended = {stage.name for stage in stages} - names  # also those that were not chosen
        self.order = {stage.name: number for number, stage in enumerate(stages)}
        self.live: dict[str, Process] = {}
        self.codes: dict[str, int] = {}
        self.gib = read_memory_gib() - RESERVED_GIB
        for path in (folder / "cache").rglob("*.so"):
            if path.stat().st_size == 0:  # of a compilation that was killed: the next one would fail on it
                path.unlink()

    def run(self) -> None:
        try:
            while (self.pending or self.live) and time.monotonic() < self.end_time:
                self.collect()
                self.start()
                self.grant_turns()
                time.sleep(0.1)
        finally:
            for name in list(self.live):
                self.finish(name, 124)

    def list_live(self) -> list[Stage]:
        """Return the stages that have started and not ended, by value."""
        return sorted((live.stage for live in self.live.values()), key=lambda stage: self.order[stage.name])

    def start(self) -> None:
        """Start what is chosen. Stages that `only` names start whatever their estimate. A rehearsal, whose stages are
        small, runs one after another."""
        seconds_left = math.inf if self.is_rehearsal or self.has_choice else self.end_time - time.monotonic()
        chosen = choose_starts(self.pending, self.list_live(), self.ended, seconds_left, self.gib)
        if self.is_rehearsal:
            chosen = [] if self.live else chosen[:1]
        for stage in chosen:
            self.pending.remove(stage)
            self.live[stage.name] = Process(stage, self.start_process(stage.name), time.monotonic())
        if self.pending and not self.live:
            names = ", ".join(stage.name for stage in self.pending)
            sys.stdout.write(f"Too little time or memory, not started: {names}. `--only` ignores the time.\n")
            self.pending = []

    def start_process(self, name: str) -> subprocess.Popen[bytes]:
        for ending in ("ready", "go"):
            (self.folder / f"{name}.{ending}").unlink(missing_ok=True)
        threads = "1" if self.is_rehearsal else "4"
        environment = {key: value for key, value in os.environ.items() if key not in DISABLING}
        environment |= {STAGE: name, FOLDER: str(self.folder), OUT: str(self.out or ""), "PYTHONUNBUFFERED": "1"}
        environment |= {"TORCHINDUCTOR_COMPILE_THREADS": threads, "OMP_NUM_THREADS": threads}
        cache = self.folder / "cache"
        environment |= {"DAILYTRAIN_CACHE": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}
        if self.is_rehearsal:
            environment[REHEARSAL] = "1"
        command = [sys.executable, "-m", "benchmarks.gpu", "--stage", name]
        with open_log(self.folder, name) as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def is_ready(self, name: str) -> bool:
        return (self.folder / f"{name}.ready").exists()

    def has_turn(self, name: str) -> bool:
        return (self.folder / f"{name}.go").exists()

    def grant_turns(self) -> None:
        now = time.monotonic()
        to_ready = {
            name: 0.0 if self.is_ready(name) else expect_ready(live.stage, now - live.started)
            for name, live in self.live.items()
            if not self.has_turn(name)
        }
        for stage in choose_turns(self.list_live(), self.live.keys() - to_ready, to_ready, self.end_time - now):
            (self.folder / f"{stage.name}.go").touch()

    def collect(self) -> None:
        for name, live in list(self.live.items()):
            factor = REHEARSAL_FACTOR if self.is_rehearsal else 1
            limit = factor * (LIMIT_FACTOR * live.stage.seconds + LIMIT_EXTRA)
            turn_limit = factor * (TURN_FACTOR * live.stage.turn_seconds + TURN_EXTRA)
            if live.process.poll() is not None:
                self.finish(name, live.process.returncode)
            elif self.measure_work(name) > limit or self.measure_turn(name) > turn_limit:
                self.finish(name, 124)

    def measure_work(self, name: str) -> float:
        """Return the seconds since a stage's start without those that it waited for its turn."""
        ready, go = self.folder / f"{name}.ready", self.folder / f"{name}.go"
        seconds = time.monotonic() - self.live[name].started
        if not ready.exists():
            return seconds
        return seconds - ((go.stat().st_mtime if go.exists() else time.time()) - ready.stat().st_mtime)

    def measure_turn(self, name: str) -> float:
        return time.time() - (self.folder / f"{name}.go").stat().st_mtime if self.has_turn(name) else 0.0

    def finish(self, name: str, code: int) -> None:
        """Record a stage's end; kill it and all that it started if it is still running."""
        live = self.live.pop(name)
        if live.process.poll() is None:
            os.killpg(live.process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):  # one that hangs in the GPU's driver does not end
                live.process.wait(5)
        self.codes[name] = code
        self.ended.add(name)
        line = {"stage": name, "code": code, "seconds": round(time.monotonic() - live.started, 1)}
        for folder in filter(None, (self.folder, self.out)):
            write_line(folder, line)


def open_log(folder: Path, name: str) -> IO[bytes]:
    return (folder / f"{name}.log").open("wb")


def read_memory_gib() -> float:
    """Return the first GPU's memory, infinity without one. torch is not asked: it would hold memory of the card."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        return float(subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]) / 1024
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError):
        return math.inf


def list_missing() -> list[str]:
    """Return the parts that stages lack on this machine."""
    programs = [name for name in ("gcc", "git", "bwrap") if shutil.which(name) is None]
    modules = ("torchao", "bitsandbytes", "flash_attn_interface")
    missing = programs + [name for name in modules if importlib.util.find_spec(name) is None]
    missing += [] if steps.NANOCHAT.exists() else ["nanochat"]
    return [name for name in missing if name != "bwrap" or not night.CARRIED.exists()]


def read_results(folder: Path) -> list[dict[str, Any]]:
    path = folder / RESULTS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def is_done(folder: Path, name: str) -> bool:
    """Whether the stage has succeeded in this or an earlier call."""
    return any(row["stage"] == name and row.get("code") == 0 and "seconds" in row for row in read_results(folder))


def list_pending(folder: Path, stages: Sequence[Stage], only: Collection[str] = ()) -> list[Stage]:
    """Return the stages to do, and those whose product they need and a fresh machine lacks. `only`: all if empty."""
    pending = [each for each in stages if each.name in (only or [each.name]) and not is_done(folder, each.name)]
    for stage in reversed(stages):
        is_needed = any(stage.name in each.after for each in pending)
        if stage.product and is_needed and stage not in pending and not (folder / stage.product).exists():
            pending.append(stage)
    return sorted(pending, key=stages.index)


def summarize(folder: Path, stages: Sequence[Stage]) -> list[str]:
    """Return a line for each stage: how it ended, what was measured last of the main figures, what is expected."""
    main = ("gpu", "tokens_per_s", "mfu_windowed", "peak_gib", "loss", "error", "deviation", "failed", "skipped")
    main += ("text_tokens_per_s", "deviations")
    lines, rows = [], read_results(folder)
    for stage in stages:
        own = [row for row in rows if row["stage"] == stage.name]
        ends = [row["code"] for row in own if "seconds" in row and "code" in row]
        known = {0: "done", SKIPPED: "SKIPPED"}
        state = known.get(ends[-1], f"failed with code {ends[-1]}") if ends else "not run"
        found = {name: row[name] for row in own for name in main if name in row}
        lines.append(f"{stage.name} | {state} | {json.dumps(found)[:240]} | expected: {stage.expected}")
    return lines


def copy_results(folder: Path, out: Path) -> None:
    """Copy the figures, and the logs in one file."""
    out.mkdir(parents=True, exist_ok=True)
    if (folder / RESULTS).exists():
        shutil.copy(folder / RESULTS, out / RESULTS)
    with (out / "logs.txt").open("w") as file:
        for path in sorted(folder.glob("*.log")):
            file.write(f"\n===== {path.stem}\n{path.read_text(errors='replace')[-LOG_TAIL:]}")


def end_by_signal(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def end_with_driver() -> None:
    """Let Linux kill this process, a stage, when the driver has ended."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the stages and what is expected")
    parser.add_argument("--rehearse", action="store_true", help="the stages at a small size on a CPU, one at a time")
    parser.add_argument("--seconds", type=float, default=540, help="end by then (%(default)s)")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="STAGE,STAGE")
    parser.add_argument("--out", type=Path, help="a folder that gets each figure at once, logs at the end")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if unknown := set(options.only) - {stage.name for stage in STAGES}:
        parser.error(f"there is no stage {', '.join(sorted(unknown))}; see --list")
    return options


def main(argv: Sequence[str] | None = None, state: Path = STATE) -> int:
    """Return 0 if every chosen stage has succeeded: none failed, was skipped or had no time."""
    options = parse_arguments(argv)
    if options.stage:
        end_with_driver()
        next(stage for stage in STAGES if stage.name == options.stage).work()
        return 0
    stages = [stage for stage in STAGES if not options.only or stage.name in options.only]
    if options.list:
        sys.stdout.write("Most valuable first; ?: seconds and memory are guesses, no card has run it to its end.\n")
        for stage in stages:
            guess = " " if stage.name in HAVE_RUN else "?"
            sys.stdout.write(
                f"{stage.name:14} {stage.seconds:4.0f} s {stage.peak_gib:5.1f} GiB {guess} {stage.expected}\n"
            )
        return 0
    folder = (state.with_name("gpu-rehearsal") if options.rehearse else state).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    out = options.out and options.out.resolve()
    if out is not None:
        copy_results(folder, out)  # of earlier calls
    sys.stdout.write(f"Missing on this machine: {', '.join(list_missing()) or 'nothing'}.\n")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, end_by_signal)
    try:
        Driver(folder, STAGES, options.seconds, options.rehearse, options.only, out).run()
    finally:
        if out is not None:
            copy_results(folder, out)
    sys.stdout.writelines(f"{line}\n" for line in summarize(folder, stages))
    return 0 if all(is_done(folder, stage.name) for stage in stages) else 1


if __name__ == "__main__":
    raise SystemExit(main())
