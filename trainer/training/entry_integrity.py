"""Check that an architecture, which is untrusted code in the same process, does not tamper with the training loop.

While an `EntryIntegrity` is entered:

- It has a snapshot of what the loop consists of (functions, methods, their code; the clock, backward passes,
  optimizers) and compares it after the model is built, at random moments of the run and at the end.
- Through Python's audit events it blocks what no architecture needs: processes, threads, the network, files, machine
  code, access to other objects. It raises if a frame of the architecture's folder is on the stack of such an event.

Not covered: a determined author, since code can change anything in its own interpreter. The scorer, the node's meter
and replays, which are other processes, are what results rely on. This check reports a mistake early.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any, Self

import torch

from trainer.errors import ModelError
from trainer.optim.muon import Muon

PROCESS = "The architecture starts a process of its own, which could train past the budget."
THREAD = "The architecture starts a thread of its own, whose work is not counted."
NETWORK = "The architecture uses the network."
MACHINE_CODE = "The architecture calls machine code outside torch, whose work is not counted."
MEMORY = "The architecture accesses the memory of processes."
FILES = "The architecture opens or changes files, and it needs none."
OBJECTS = "The architecture searches for objects of the training loop."
CHANGED = "The architecture changed the training loop"

EVENTS = {
    **dict.fromkeys(("os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "os.spawn"), PROCESS),
    **dict.fromkeys(("subprocess.Popen", "pty.spawn"), PROCESS),
    **dict.fromkeys(("_thread.start_new_thread", "_thread.start_joinable_thread"), THREAD),
    **dict.fromkeys(("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "os.rmdir"), FILES),
    **dict.fromkeys(("os.link", "os.symlink", "os.truncate", "os.chmod", "os.chdir", "mmap.__new__"), FILES),
    **dict.fromkeys(("gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames"), OBJECTS),
    **dict.fromkeys(("sys.settrace", "sys.setprofile", "sys.addaudithook"), OBJECTS),
}
"""Audit events that no architecture needs -> message (https://docs.python.org/3/library/audit_events.html)."""

EVENT_MODULES = {"socket": NETWORK, "ctypes": MACHINE_CODE}  # the same for all events of a module

DIRECT_EVENTS = {"sys._getframe": OBJECTS, "object.__setattr__": OBJECTS, "object.__delattr__": OBJECTS}
"""Events that libraries also cause (dataclasses read frames): blocked only if the architecture itself is the caller.
Python raises the latter two for a function's code and the like, not for ordinary attributes."""

TRUSTED_CALLERS = (
    "/torch/_dynamo/",
    "/torch/_inductor/",
    "/triton/",
    "<frozen importlib._bootstrap>",
    "/trainer/training/loop.py",
    "/trainer/train.py",
)
"""The search of the stack ends at a frame of these: compilers, imports of libraries, and the loop itself."""

SOURCES = (".py", ".pyc")  # may be read: tracebacks, warnings and torch's script compiler read them

LIBRARY_FUNCTIONS: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("perf_counter", "perf_counter_ns", "monotonic", "time", "process_time")),
    (torch.Tensor, "backward"),
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (torch.nn.functional, "cross_entropy"),
    (torch.nn.utils, "get_total_norm"),
    (threading.Thread, "start"),
)
"""Functions of libraries that the loop uses."""

BASE = "trainer.models.base"  # used instead of an architecture that does not exist
RANDOM_CHECKS = 3  # in a run


def check_early_flops(flops: float, flops_per_step: float) -> None:
    """Raise `ModelError` if an architecture computed more than one training step before the first one."""
    if flops > flops_per_step:
        raise ModelError(
            f"The architecture computes as much as {flops / flops_per_step:.0f} training steps before the first one: "
            "that is training outside of the budget."
        )


class EntryIntegrity:
    """Context manager that watches an architecture. Enter it before the architecture is imported."""

    def __init__(self, module: str) -> None:
        """`module`: the architecture's. All files in its folder count as the author's."""
        spec = importlib.util.find_spec(module) or importlib.util.find_spec("trainer.models")
        assert spec is not None
        assert spec.origin is not None
        self.folder = str(Path(spec.origin).parent) + os.sep
        self.first_violation = ""
        self._classes: tuple[type, ...] = ()
        self._snapshot: dict[str, Any] = {}
        self._check_fractions = [random.SystemRandom().random() for _ in range(RANDOM_CHECKS)]

    def __enter__(self) -> Self:
        global _is_hook_installed
        if not _is_hook_installed:
            sys.addaudithook(_audit_hook)  # cannot be removed; does nothing while no check is entered
            _is_hook_installed = True
        self._start_thread = threading.Thread.start
        threading.Thread.start = _add_audit_event(self._start_thread)  # type: ignore[method-assign]
        Muon([torch.zeros(1, 1)])  # torch wraps a class's `step` when its first instance is built
        self.extend_snapshot()
        _active.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _active.remove(self)
        threading.Thread.start = self._start_thread  # type: ignore[method-assign]

    def extend_snapshot(self, *classes: type) -> None:
        """Add what is new in our modules, in `LIBRARY_FUNCTIONS` and in these classes. Earlier parts stay."""
        self._classes += classes
        self._snapshot = dict(iterate_parts(self._classes)) | self._snapshot

    def check(self) -> None:
        """Raise `ModelError` if an event was blocked earlier or the loop differs from the snapshot."""
        if self.first_violation:
            raise ModelError(self.first_violation)
        current = dict(iterate_parts(self._classes))
        for name, part in self._snapshot.items():
            if name in current and current[name] is not part:
                raise ModelError(f"{CHANGED} ({name}).")

    def is_check_due(self, before: float, after: float) -> bool:
        """Return whether one of the random checks lies between these used fractions of the budget."""
        return any(before < fraction <= after for fraction in self._check_fractions)

    def handle_event(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        """Raise `ModelError` if the architecture caused the event."""
        if event in DIRECT_EVENTS:
            message, is_caused = DIRECT_EVENTS[event], frame.f_code.co_filename.startswith(self.folder)
        else:
            message = EVENTS.get(event) or EVENT_MODULES[event.partition(".")[0]]
            is_caused = self.is_on_stack(frame)
        path = str(args[0]) if args and event == "open" else ""
        if not is_caused or (path.endswith(SOURCES) and args[1] in ("r", "rb", None)):
            return
        message = MEMORY if path.startswith("/proc") else message
        self.first_violation = self.first_violation or message
        raise ModelError(message)

    def is_on_stack(self, frame: FrameType | None) -> bool:
        """Return whether a frame of the architecture is on the stack, above any of `TRUSTED_CALLERS`."""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self.folder):
                return True
            if any(part in name for part in TRUSTED_CALLERS):
                return False
            frame = frame.f_back
        return False


_active: list[EntryIntegrity] = []
_is_hook_installed = False


def _add_audit_event(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Return `Thread.start` with the audit event that Python has only from 3.12."""

    def start_with_event(thread: threading.Thread) -> None:
        sys.audit("_thread.start_new_thread")
        start(thread)

    return start_with_event


def _audit_hook(event: str, args: tuple[Any, ...]) -> None:
    """Handle an audit event. Must be fast: Python raises many."""
    if _active and (event in EVENTS or event in DIRECT_EVENTS or event.partition(".")[0] in EVENT_MODULES):
        for integrity in tuple(_active):
            integrity.handle_event(event, args, _get_caller())


def _get_caller() -> FrameType:
    """Return the frame that caused the event. `sys._getframe` would be an event of its own."""
    try:
        raise LookupError
    except LookupError as error:
        frame: Any = error.__traceback__.tb_frame  # type: ignore[union-attr]
        return frame.f_back.f_back


def iterate_parts(classes: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """Yield (name, object) of everything that the loop consists of, down to the code of its functions."""
    for module_name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        name = spec.name if spec is not None else module_name  # `python -m trainer.train` is `__main__` in sys.modules
        if name.startswith("trainer.") and not name.startswith("trainer.models"):
            yield from iterate_members(module_name, module)
    for owner, name in LIBRARY_FUNCTIONS:
        yield from iterate_code(f"{owner.__name__}.{name}", getattr(owner, name))
    for cls in classes:
        yield from iterate_members(f"{cls.__module__}.{cls.__qualname__}", cls)


def iterate_members(prefix: str, owner: ModuleType | type) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(owner).items()):
        if isinstance(value, type) and value.__module__ == prefix:
            yield f"{prefix}.{name}", value
            yield from iterate_members(f"{prefix}.{name}", value)
        elif callable(value) or isinstance(value, ModuleType | property | classmethod | staticmethod):
            yield from iterate_code(f"{prefix}.{name}", value)


def iterate_code(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, value
    if isinstance(value, FunctionType):
        yield f"{name}.__code__", value.__code__
