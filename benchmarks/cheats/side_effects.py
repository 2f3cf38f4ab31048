"""Cheats by side effects of Python: they happen in the tracing process, and no graph holds them."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cheats.base import Config, Model, cases_from, vary
from trainer.models.base import ParameterGroup, Recipe, Schedule


def train_more() -> None:
    """Train a small model outside of any budget."""
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 4)).square().mean().backward()
    optimizer.step()


def walk_frames() -> None:
    frame: types.FrameType | None = sys._getframe()
    while frame := frame.f_back if frame else None:
        if "run" in frame.f_locals:
            frame.f_locals["run"].usage.steps -= 1


def search_objects() -> None:
    for found in gc.get_objects():
        if type(found).__name__ == "Usage":
            found.steps = 0


def stop_clocks() -> None:
    for name in ("perf_counter", "monotonic", "time", "process_time"):
        setattr(time, name, lambda: 0.0)


def patch_flop_counter() -> None:
    FlopCounterMode.get_total_flops = lambda self: 0


def patch_cost_of_graphs() -> None:
    from trainer.graph import counting

    counting.count_training_cost = lambda model: None


def patch_correction() -> None:
    from trainer.scoring import look_ahead

    look_ahead.draw_positions = lambda *arguments: None


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def connect() -> None:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", 9), 0.2).close()


def read_parents_memory() -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{os.getppid()}/mem").open("rb").close()


def talk_through_locks() -> None:
    """Signal bits of later tokens to another scoring process, as locked bytes of a file that both can read."""
    with Path("locks").open("w") as file:
        for bit in range(6):
            fcntl.lockf(file, fcntl.LOCK_EX, 1, bit)


def talk_through_page_cache() -> None:
    """Signal bits as pages that are in memory or not."""
    Path("pages").write_bytes(bytes(8 * mmap.PAGESIZE))
    with Path("pages").open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, mmap.PAGESIZE, os.POSIX_FADV_DONTNEED)
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[mmap.PAGESIZE]


def talk_through_shared_memory() -> None:
    memory = shared_memory.SharedMemory(create=True, size=64)
    memory.buf[0] = 1
    memory.close()
    memory.unlink()


def follow_calls() -> None:
    sys.setprofile(lambda frame, event, argument: None)
    sys.setprofile(None)


def collect_later() -> None:
    weakref.finalize(Model, train_more).detach()


ACTIONS: dict[str, Callable[[], Any]] = {
    "walks to the frames of the loop and takes steps back": walk_frames,
    "searches all objects for the spent budget": search_objects,
    "stops all clocks": stop_clocks,
    "patches FlopCounterMode": patch_flop_counter,
    "patches the costs of graphs": patch_cost_of_graphs,
    "patches the look-ahead correction": patch_correction,
    "trains on in atexit": lambda: atexit.register(train_more),
    "trains on in a thread": lambda: threading.Thread(target=train_more, daemon=True).start(),
    "trains on in a finalizer": collect_later,
    "forks a helper": fork,
    "starts a program": lambda: subprocess.run(["true"], check=False),
    "opens a connection": connect,
    "writes metrics": lambda: Path("metrics.jsonl").write_text('{"loss": 0}\n'),
    "reads the memory of another process": read_parents_memory,
    "tells later tokens through record locks": talk_through_locks,
    "tells later tokens through the page cache": talk_through_page_cache,
    "tells later tokens through shared memory": talk_through_shared_memory,
    "follows every call": follow_calls,
}


def act_in_pass(action: Callable[[], Any]) -> Callable[[], Any]:
    def features(self: Model, tokens: Tensor) -> Tensor:
        action()
        return Model.features(self, tokens)

    return lambda: vary(features=features)


def train_in_train(self: nn.Module, mode: bool = True) -> nn.Module:
    train_more()
    return nn.Module.train(self, mode)


class TrainingSchedule(Schedule):
    """Trains whenever the learning rate is asked for."""

    def scale(self, fraction: float, steps: int | None = None) -> float:
        train_more()
        return super().scale(fraction, steps)


def train_in_schedule(config: Config) -> Recipe:
    return Recipe((ParameterGroup("all", ("*",), "adamw", learning_rate=1e-3),), schedule=TrainingSchedule())


def override_forward(self: Model, tokens: Tensor) -> Tensor:
    logits = self.logits(self.features(tokens))
    return logits + 5 * torch.zeros_like(logits).scatter(2, tokens.roll(-1, 1)[..., None], 1.0)


UTF7 = b"""# -*- coding: utf-7 -*-
# This line is a comment until it is decoded. +AAo-import time; time.perf_counter = lambda: 0.0
"""


def hide_in_encoding() -> Any:
    Path("hidden.py").write_bytes(UTF7)
    exec(compile(Path("hidden.py").read_bytes(), "hidden.py", "exec"), {})  # noqa: S102 (as an import would)
    return vary()


CASES = cases_from(
    {
        **{name: act_in_pass(action) for name, action in ACTIONS.items()},
        "trains in train()": lambda: vary(train=train_in_train),
        "trains in the schedule": lambda: vary(recipe=train_in_schedule),
        "looks ahead in forward(), which nothing calls": lambda: vary(forward=override_forward),
        "hides code in a source encoding": hide_in_encoding,
        "counts fewer parameters in parameters()": lambda: vary(parameters=lambda self, recurse=True: iter(())),
    },
    "no effect",
)
