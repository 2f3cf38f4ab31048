"""Is the training loop still ours, although a stranger's code runs in the same process?

A `Guard` does two things while it is entered:

- It keeps what the loop consists of (functions, methods, their code; the clock, backward passes, optimizers) and looks
  whether all of it is still the same: after the architecture was built, at random moments of the run, at the end.
- Through Python's audit events it stops what no architecture needs: processes, threads, the network, files, machine
  code, a look at other objects. Where an event has a frame of the architecture's folder on its stack, it raises.

Not covered: a determined author. Python keeps no secrets from code in the same interpreter. What counts in the end are
the scorer and the agent's meter, which are other processes, and replays; this here tells an author, at once and in one
sentence, what an architecture must not do.
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

PROCESS = "The architecture starts a process of its own, which could train past the budget."
THREAD = "The architecture starts a thread of its own, whose work nobody counts."
NETWORK = "The architecture tries the network."
MACHINE_CODE = "The architecture calls machine code past torch, whose work nobody counts."
MEMORY = "The architecture reaches for the memory of processes."
FILES = "The architecture opens or changes files, of which it needs none."
OBJECTS = "The architecture looks for objects of the training loop."
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
"""Audit events that no architecture causes, and what is said of each
(https://docs.python.org/3/library/audit_events.html)."""

FAMILIES = {"socket": NETWORK, "ctypes": MACHINE_CODE}  # the same for all events of a module

OWN_HAND = {"sys._getframe": OBJECTS, "object.__setattr__": OBJECTS, "object.__delattr__": OBJECTS}
"""Events that libraries cause for honest reasons (dataclasses look at frames): only where the architecture itself did
it. The latter two are raised for a function's code and its like, not for ordinary attributes."""

LIBRARIES = (
    "/torch/_dynamo/",
    "/torch/_inductor/",
    "/triton/",
    "<frozen importlib._bootstrap>",
    "/trainer/training/loop.py",
    "/trainer/train.py",
)
"""What compilers do, and what happens while a library is imported, is not the architecture's doing. What the loop
itself was called by is nobody's."""

SOURCES = (".py", ".pyc")  # reading these is harmless: tracebacks, warnings and torch's script compiler do

OUTSIDE: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("perf_counter", "perf_counter_ns", "monotonic", "time", "process_time")),
    (torch.Tensor, "backward"),
    (torch.autograd, "backward"),
    (torch.autograd, "grad"),
    (torch.nn.functional, "cross_entropy"),
    (torch.nn.utils, "get_total_norm"),
    (threading.Thread, "start"),
)
"""What the loop uses of others."""

BASE = "trainer.models.base"  # stands in for an architecture that does not exist
LOOKS = 3  # at random moments of a run


def check_early_flops(flops: float, flops_per_step: float) -> None:
    """Raise `ModelFailure` if an architecture computed more than a training step's worth before the first one."""
    if flops > flops_per_step:
        raise ModelError(
            f"The architecture computes as much as {flops / flops_per_step:.0f} training steps before the first one: "
            "that is training outside of the budget."
        )


class EntryIntegrity:
    """Watches an architecture. A context manager; enter it before the architecture is imported."""

    def __init__(self, module: str) -> None:
        """`module`: where the architecture is, by its dotted name. Whatever lies in the same folder is its author's."""
        spec = importlib.util.find_spec(module) or importlib.util.find_spec("trainer.models")
        assert spec is not None
        assert spec.origin is not None
        self.folder = str(Path(spec.origin).parent) + os.sep
        self.stopped = ""  # what it tried first
        self._classes: tuple[type, ...] = ()
        self._kept: dict[str, Any] = {}
        self._looks = sorted(random.SystemRandom().random() for _ in range(LOOKS))

    def __enter__(self) -> Self:
        global _hooked
        if not _hooked:
            sys.addaudithook(_heard)  # cannot be taken back; without a guard it does nothing
            _hooked = True
        self._start_thread = threading.Thread.start
        threading.Thread.start = _audited(self._start_thread)  # type: ignore[method-assign]
        self.keep()
        _guards.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        _guards.remove(self)
        threading.Thread.start = self._start_thread  # type: ignore[method-assign]

    def keep(self, *more: type) -> None:
        """Take what is new as what it should be: of our modules, of `OUTSIDE`, and of these classes."""
        self._classes += more
        self._kept = dict(parts(self._classes)) | self._kept

    def check(self) -> None:
        """Raise `ModelFailure` if the architecture tried something, or if the loop is no longer the one kept."""
        if self.stopped:
            raise ModelError(self.stopped)
        now = dict(parts(self._classes))
        for name, part in self._kept.items():
            if name in now and now[name] is not part:
                raise ModelError(f"{CHANGED} ({name}).")

    def is_check_due(self, before: float, after: float) -> bool:
        """Is there a look to take between these used fractions of the budget? Nobody can foresee it."""
        return any(before < moment <= after for moment in self._looks)

    def hear(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        sentence = OWN_HAND.get(event)
        if sentence is not None:
            if not frame.f_code.co_filename.startswith(self.folder):
                return
        else:
            sentence = EVENTS.get(event) or FAMILIES[event.partition(".")[0]]
            if not self.caused(frame):
                return
        path = str(args[0]) if args and event == "open" else ""
        if path.endswith(SOURCES) and args[1] in ("r", "rb", None):
            return
        sentence = MEMORY if path.startswith("/proc") else sentence
        self.stopped = self.stopped or sentence
        raise ModelError(sentence)

    def caused(self, frame: FrameType | None) -> bool:
        """Is a frame of the architecture on the stack, called by the loop, with no compiler or import in between?"""
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self.folder):
                return True
            if any(part in name for part in LIBRARIES):
                return False
            frame = frame.f_back
        return False


_guards: list[EntryIntegrity] = []
_hooked = False


def _audited(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """Python before 3.12 has no event for the start of a thread."""

    def audited(thread: threading.Thread) -> None:
        sys.audit("_thread.start_new_thread")
        start(thread)

    return audited


def _heard(event: str, args: tuple[Any, ...]) -> None:
    """Python's audit hook: fast where there is nothing to look at, which is nearly always."""
    if not _guards or not (event in EVENTS or event in OWN_HAND or event.partition(".")[0] in FAMILIES):
        return
    for guard in tuple(_guards):
        guard.hear(event, args, _caller())


def _caller() -> FrameType:
    """Return the frame that caused the event. `sys._getframe` would be an event of its own."""
    try:
        raise LookupError
    except LookupError as error:
        here = error.__traceback__
        assert here is not None
        hook = here.tb_frame.f_back
        assert hook is not None
        assert hook.f_back is not None
        return hook.f_back


def parts(classes: tuple[type, ...]) -> Iterator[tuple[str, Any]]:
    """(name, object) of everything that the loop consists of, down to the code of its functions."""
    for known_as, module in list(sys.modules.items()):
        # `python -m trainer.train` is known as `__main__`.
        spec = getattr(module, "__spec__", None)
        name = spec.name if spec is not None else known_as
        if name.startswith("trainer.") and not name.startswith("trainer.models"):
            yield from members(known_as, module)
    for owner, name in OUTSIDE:
        yield from function(f"{owner.__name__}.{name}", getattr(owner, name))
    for found in classes:
        yield from members(f"{found.__module__}.{found.__qualname__}", found)


def members(prefix: str, owner: ModuleType | type) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(owner).items()):
        if isinstance(value, type) and value.__module__ == prefix:
            yield f"{prefix}.{name}", value
            yield from members(f"{prefix}.{name}", value)
        elif callable(value) or isinstance(value, ModuleType | property | classmethod | staticmethod):
            yield from function(f"{prefix}.{name}", value)


def function(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, value
    if isinstance(value, FunctionType):
        yield f"{name}.__code__", value.__code__
