"""Client of a model that runs in its own sandboxed process: token ids go out, logits come back.

Nothing here trusts that process. Every wait has a timeout and every message a fixed size. Logits are copied out of the
shared memory before they are used, and compared with the memory afterwards to detect changes.

Not covered: a sandbox without descriptor passing (docker); a model that is only slow, within its timeouts.
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
"""Logits of one request, unless a single row is larger: enough to keep two cores busy, cheap to copy."""
RECHECKED_POSITIONS = 16  # positions of each reply that are compared with the shared memory again after use

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    # Waiting threads sleep: spinning on shared cores made a forward pass three times slower.
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

    load: float = 300  # from the start of the process until the model is loaded
    reply: float = 300  # for the reply to one request (64 MiB of logits)
    wall: float = 6 * 3600  # lifetime of the process


class ModelProcessClient:
    """One model process. Call `start()`, `wait_until_loaded()`, then `get_logits()`; also a context manager."""

    def __init__(
        self,
        run: RunFolder,
        driver: SandboxDriver,
        *,
        model_source: Path | None = None,
        timeouts: Timeouts | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        """`output`: receives the model's standard streams. Dropped by default, because they could leak secret text."""
        self.run = run
        positions = max(run.sequence_length, MEMORY_BYTES // (run.vocabulary_size * LOGIT_BYTES))
        self.layout = SharedMemoryLayout(positions, run.vocabulary_size)
        self._timeouts = timeouts or Timeouts()
        self._driver = driver
        self._model_source = model_source
        self._output = output
        self._calls = 0
        self._rechecked: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
        self._resources = contextlib.ExitStack()
        self._process: SandboxProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def sequence_length(self) -> int:
        return self.run.sequence_length

    @property
    def max_tokens(self) -> int:
        return self.layout.positions

    def start(self) -> None:
        """Start the process; it loads the model in the background."""
        layout = self.layout
        memory = create_sealed_memory(layout.size())
        self._resources.callback(os.close, memory)
        offset = layout.logits_offset()
        tokens = mmap.mmap(memory, offset)
        logits = mmap.mmap(memory, layout.size() - offset, prot=mmap.PROT_READ, offset=offset)
        self._tokens = np.frombuffer(tokens, np.int64, layout.positions)
        self._logits = np.frombuffer(logits, np.float32)
        self._copy = np.empty_like(self._logits)
        self._socket, model_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._resources.callback(self._socket.close)
        with model_socket:
            self._process = self._start_process(model_socket.fileno(), memory)
        self._resources.callback(self._kill)

    def _start_process(self, control: int, memory: int) -> SandboxProcess:
        root = Path(trainer.__file__).resolve().parent.parent
        run = self.run
        command = [sys.executable, "-m", "trainer.scoring.model_process"]
        command += ["--control", str(control), "--memory", str(memory)]
        command += ["--positions", str(self.layout.positions), "--vocabulary", str(self.layout.vocabulary)]
        command += ["--run", str(run.folder), "--checkpoint", str(run.checkpoint)]
        mounts = [Mount(root / "trainer"), Mount(run.folder), Mount(run.checkpoint)]
        if self._model_source is not None:
            command += ["--models", str(self._model_source)]
            mounts.append(Mount(self._model_source))
        spec = SandboxSpec(
            command=tuple(command),
            environment=ENVIRONMENT | {"PYTHONPATH": str(root)},
            mounts=tuple(mounts),
            folder=run.folder,
            limits=self._limits(),
            pass_fds=(control, memory),
        )
        with contextlib.ExitStack() as stack:
            output = self._output or stack.enter_context(Path(os.devnull).open("wb"))
            return self._driver.start(spec, stdout=output, stderr=output)

    def _limits(self) -> ResourceLimits:
        """Limit memory to three quarters of the machine's: the size of a model is not checked here."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return ResourceLimits(
            wall_seconds=self._timeouts.wall, memory_bytes=total * 3 // 4, disk_bytes=64 * 2**20, processes=256
        )

    def wait_until_loaded(self) -> None:
        self._receive(0, self._timeouts.load, ReplyStatus.LOADED)

    def get_logits(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return logits [rows, length, vocabulary] for token ids [rows, length].

        The array is the scorer's own copy, valid until the next call. Its numbers may be NaN or infinite.
        """
        rows, length = tokens.shape
        self._request(tokens, rows, length, ReplyStatus.ANSWERED)
        count = tokens.size * self.layout.vocabulary
        np.copyto(self._copy[:count], self._logits[:count])
        indices = np.array([secrets.randbelow(tokens.size) for _ in range(RECHECKED_POSITIONS)])
        self._rechecked = indices, self._copy.reshape(-1, self.layout.vocabulary)[indices]
        return self._copy[:count].reshape(rows, length, self.layout.vocabulary)

    def measure_cost(self, row: NDArray[np.int64]) -> TrainingCost:
        """Return the cost of training on a row like this. Must be the last call: it leaves training mode on."""
        self._request(row, 0, len(row), ReplyStatus.COUNTED)
        counts = COST.unpack(self._logits.view(np.uint8)[: COST.size].tobytes())
        return TrainingCost.from_counts(*counts, stored=self.run.parameters)

    def check_unchanged(self) -> None:
        """Raise `LogitsChangedError` if the shared memory no longer holds the last reply. (Our copy was scored.)"""
        if self._rechecked is None:
            return
        indices, copied = self._rechecked
        current = self._logits.reshape(-1, self.layout.vocabulary)[indices]
        # Compared as integers: NaN is not equal to itself.
        if not np.array_equal(current.view(np.int32), copied.view(np.int32)):
            raise misbehavior.LogitsChangedError

    def _request(self, tokens: NDArray[np.int64], rows: int, length: int, expected: ReplyStatus) -> None:
        """Send token ids and wait for the reply; `rows` 0 requests the training cost."""
        self.check_unchanged()
        self._rechecked = None
        assert 0 < tokens.size <= self.layout.positions
        assert length <= self.run.sequence_length
        # Zero the rest: an earlier, longer request must not show what follows in this one.
        self._tokens[: tokens.size] = tokens.ravel()
        self._tokens[tokens.size :] = 0
        self._calls += 1
        self._send(REQUEST.pack(self._calls, rows, length))
        self._receive(self._calls, self._timeouts.reply, expected)

    def _send(self, message: bytes) -> None:
        self._socket.settimeout(self._timeouts.reply)
        try:
            self._socket.send(message)
        except TimeoutError:
            raise misbehavior.ModelTimeoutError from None
        except OSError:
            raise self._explain_exit() from None

    def _receive(self, call: int, seconds: float, expected: ReplyStatus) -> None:
        self._socket.settimeout(seconds)
        try:
            message = self._socket.recv(REPLY.size + 1)
        except TimeoutError:
            raise misbehavior.ModelTimeoutError from None
        except OSError:
            raise self._explain_exit() from None
        if not message:
            raise self._explain_exit()
        if len(message) != REPLY.size:
            raise misbehavior.InvalidReplyError
        replied_call, status = REPLY.unpack(message)
        if replied_call == call and status in REPORTED_ERRORS:
            raise REPORTED_ERRORS[status]
        if (replied_call, status) != (call, expected):
            raise misbehavior.InvalidReplyError

    def _explain_exit(self) -> misbehavior.ModelMisbehaviorError:
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
        self._resources.close()
