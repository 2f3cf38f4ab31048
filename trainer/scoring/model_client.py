"""The scorer's side of the door: token ids go out to a model in its own sandboxed process, logits come back.

Nothing here trusts what is behind the door. Every wait has an end, every message one size; logits are copied out of the
shared memory before anybody looks at them, and looked at again afterwards to see that they stayed.

Not covered: a sandbox without descriptor passing (docker); a model behind the door that is only slow, within its time.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np
from numpy.typing import NDArray

import trainer
from trainer.sandbox import Mount, ResourceLimits, SandboxDriver, SandboxProcess, SandboxSpec
from trainer.scoring import misbehavior
from trainer.scoring.channel import (
    COST,
    LOGIT_BYTES,
    REPLY,
    REQUEST,
    ReplyStatus,
    SharedMemoryLayout,
    create_sealed_memory,
)
from trainer.scoring.cost import TrainingCost
from trainer.scoring.run_folder import RunFolder

MEMORY_BYTES = 64 * 2**20
"""Logits of one question, where a single row is not larger: big enough to keep two cores busy, small to copy."""

WATCHED_ROWS = 16
"""Positions of each answer that are compared again after use."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Threads that wait sleep: where others use the cores too, spinning made a forward pass three times slower.
    "OMP_WAIT_POLICY": "PASSIVE",
}

REPORTED_ERRORS: dict[int, type[misbehavior.ModelMisbehaviorError]] = {
    ReplyStatus.COULD_NOT_LOAD: misbehavior.ModelLoadError,
    ReplyStatus.RAISED: misbehavior.ModelRaisedError,
    ReplyStatus.WRONG_SHAPE: misbehavior.LogitsShapeError,
}


@dataclass(frozen=True)
class Timeouts:
    """How long the scorer waits, in seconds."""

    load: float = 300
    """From the start of the process until the model is loaded."""
    answer: float = 300
    """For one question: 64 MiB of logits."""
    wall: float = 6 * 3600
    """The process's whole life."""


class ModelProcessClient:
    """One model process. Start with `open()`, then `wait()` until it has loaded, then `ask()`; a context manager."""

    def __init__(
        self,
        run: RunFolder,
        driver: SandboxDriver,
        *,
        model_source: Path | None = None,
        patience: Timeouts | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        """`output`: where the model's own words go; by default nowhere, as it must be where the text is secret."""
        self.run = run
        positions = max(run.sequence_length, MEMORY_BYTES // (run.vocabulary_size * LOGIT_BYTES))
        self.space = SharedMemoryLayout(positions, run.vocabulary_size)
        self.patience = patience or Timeouts()
        self._driver = driver
        self._model_source = model_source
        self._output = output
        self._calls = 0
        self._watched: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
        self._closing = contextlib.ExitStack()
        self._process: SandboxProcess | None = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Start the process; it loads the model while the caller does something else."""
        space = self.space
        memory = create_sealed_memory(space.size())
        self._closing.callback(os.close, memory)
        offset = space.logits_offset()
        tokens = mmap.mmap(memory, offset)
        logits = mmap.mmap(memory, space.size() - offset, prot=mmap.PROT_READ, offset=offset)
        self._tokens = np.frombuffer(tokens, np.int64, space.positions)
        self._logits = np.frombuffer(logits, np.float32)
        self._copy = np.empty_like(self._logits)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._closing.callback(self._socket.close)
        with theirs:
            self._process = self._start(theirs.fileno(), memory)
        self._closing.callback(self._kill)

    def _start(self, control: int, memory: int) -> SandboxProcess:
        root = Path(trainer.__file__).resolve().parent.parent
        space, run = self.space, self.run
        command = [sys.executable, "-m", "trainer.scoring.model_process"]
        command += ["--control", str(control), "--memory", str(memory)]
        command += ["--positions", str(space.positions), "--vocabulary", str(space.vocabulary)]
        command += ["--run", str(run.folder), "--checkpoint", str(run.checkpoint)]
        mounts = [Mount(root / "trainer"), Mount(run.folder), Mount(run.checkpoint)]
        if self._model_source is not None:
            command += ["--models", str(self._model_source)]
            mounts.append(Mount(self._model_source))
        box = SandboxSpec(
            command=tuple(command),
            environment=ENVIRONMENT | {"PYTHONPATH": str(root)},
            mounts=tuple(mounts),
            folder=run.folder,
            limits=self._limits(),
            pass_fds=(control, memory),
        )
        with contextlib.ExitStack() as stack:
            output = self._output or stack.enter_context(Path(os.devnull).open("wb"))
            return self._driver.start(box, stdout=output, stderr=output)

    def wait(self) -> None:
        """Until the model has loaded."""
        self._reply(0, self.patience.load, ReplyStatus.LOADED)

    def ask(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits[rows, length, vocabulary] for token ids[rows, length].

        The array is the scorer's own copy, good until the next question; whether its numbers are finite is not
        looked at here.
        """
        self.check_watched()
        rows, length = tokens.shape
        assert 0 < tokens.size <= self.space.positions
        assert length <= self.run.sequence_length
        # Zero what is left: an earlier, longer question must not show what follows in this one.
        self._tokens[: tokens.size] = tokens.ravel()
        self._tokens[tokens.size :] = 0
        self._calls += 1
        self._send(REQUEST.pack(self._calls, rows, length))
        self._reply(self._calls, self.patience.answer, ReplyStatus.ANSWERED)
        count = tokens.size * self.space.vocabulary
        np.copyto(self._copy[:count], self._logits[:count])
        self._watch(tokens.size)
        return self._copy[:count].reshape(rows, length, self.space.vocabulary)

    def cost(self, row: NDArray[np.int64]) -> TrainingCost:
        """What training on a row like this costs. The last question: the model is in training mode afterwards."""
        self.check_watched()
        self._watched = None
        assert 0 < len(row) <= self.run.sequence_length
        self._tokens[: len(row)] = row
        self._tokens[len(row) :] = 0
        self._calls += 1
        self._send(REQUEST.pack(self._calls, 0, len(row)))
        self._reply(self._calls, self.patience.answer, ReplyStatus.COUNTED)
        return TrainingCost.read(*COST.unpack(self._logits.view(np.uint8)[: COST.size].tobytes()), self.run.parameters)

    def _watch(self, positions: int) -> None:
        chosen = np.array([secrets.randbelow(positions) for _ in range(WATCHED_ROWS)])
        self._watched = chosen, self._copy.reshape(-1, self.space.vocabulary)[chosen]

    def check_watched(self) -> None:
        """Raises `ChangedItsAnswer` when the last answer is no longer what was copied. (The copy is what counted.)"""
        if self._watched is None:
            return
        chosen, seen = self._watched
        now = self._logits.reshape(-1, self.space.vocabulary)[chosen]
        # Compared as integers: NaN is not equal to itself.
        if not np.array_equal(now.view(np.int32), seen.view(np.int32)):
            raise misbehavior.LogitsChangedError

    def _send(self, message: bytes) -> None:
        self._socket.settimeout(self.patience.answer)
        try:
            self._socket.send(message)
        except TimeoutError:
            raise misbehavior.ModelTimeoutError from None
        except OSError:
            raise self._ended() from None

    def _reply(self, call: int, seconds: float, wanted: ReplyStatus) -> None:
        self._socket.settimeout(seconds)
        try:
            message = self._socket.recv(REPLY.size + 1)
        except TimeoutError:
            raise misbehavior.ModelTimeoutError from None
        except OSError:
            raise self._ended() from None
        if not message:
            raise self._ended()
        if len(message) != REPLY.size:
            raise misbehavior.InvalidReplyError
        answered, status = REPLY.unpack(message)
        if answered == call and status in REPORTED_ERRORS:
            raise REPORTED_ERRORS[status]
        if (answered, status) != (call, wanted):
            raise misbehavior.InvalidReplyError

    def _ended(self) -> misbehavior.ModelMisbehaviorError:
        assert self._process is not None
        with contextlib.suppress(Exception):
            self._process.wait(10)
        if self._process.limit_error:
            return misbehavior.ResourceLimitError(self._process.limit_error)
        return misbehavior.ModelProcessDiedError()

    def _kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def close(self) -> None:
        self._closing.close()

    def _limits(self) -> ResourceLimits:
        """Memory: what the machine has, less a quarter; a model's size is its own business."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return ResourceLimits(
            wall_seconds=self.patience.wall, memory_bytes=total * 3 // 4, disk_bytes=64 * 2**20, processes=256
        )
