"""Messages and shared memory between the scorer and the model's process.

The scorer creates both file descriptors: a sequenced-packet socket with messages of a fixed size (so nothing has to be
parsed), and one sealed memory file of a fixed size. The memory holds token ids, then logits:

    int64[positions]                token ids of a request [rows, length], scorer -> model; the rest is zero
    float32[positions, vocabulary]  its logits, model -> scorer

The file is sealed against shrinking: otherwise the model could truncate it and kill the scorer with SIGBUS.
"""

from __future__ import annotations

import enum
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass

TOKEN_BYTES = 8
LOGIT_BYTES = 4
REQUEST = struct.Struct("<III")  # scorer -> model: number of the call (1, 2, 3...), rows, length
COST = struct.Struct("<dQQI")
"""The reply to a request of 0 rows, written at the start of the logits: FLOPs per token, parameters of the model,
those of its embeddings, why the FLOPs do not count (an index into `trainer.accounting.plausibility.VOID_REASONS`)."""
REPLY = struct.Struct("<II")  # model -> scorer: number of the call it answers (0: loaded), `ReplyStatus`


class ReplyStatus(enum.IntEnum):
    """How a call went, as the model's process reports it. The scorer does not rely on the successful ones."""

    LOADED = 1
    ANSWERED = 2
    COULD_NOT_LOAD = 3
    RAISED = 4
    WRONG_SHAPE = 5
    COUNTED = 6


@dataclass(frozen=True)
class SharedMemoryLayout:
    """Size of the shared memory, fixed when the process starts."""

    positions: int  # most tokens in one request, rows times length
    vocabulary: int  # logits in each position

    def logits_offset(self) -> int:
        """Return where the logits begin: on a page of their own, so that the scorer can map them read-only."""
        page = mmap.ALLOCATIONGRANULARITY
        return -(-self.positions * TOKEN_BYTES // page) * page

    def size(self) -> int:
        return self.logits_offset() + self.positions * self.vocabulary * LOGIT_BYTES


def create_sealed_memory(size: int) -> int:
    """Return the descriptor of a memory file of exactly `size` bytes that cannot be resized; the caller closes it."""
    fd = os.memfd_create("dailytrain-logits", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd
