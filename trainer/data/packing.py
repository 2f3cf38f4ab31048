"""BOS-aligned best-fit packing: every row begins with the start of a document.

Each document on disk follows an end-of-text token, so every row begins with that token. A row takes the oldest
candidate, then repeatedly the longest candidate that still fits. When none fits, it crops the shortest one to fill the
row. So every token has the start of its document in its row, and no row has padding. The cropped tokens are lost for
that epoch; `waste` is their share.

Best-fit packing is by Ding et al. (arXiv 2404.10830, without the rule about starts); nanochat crops in the same way.
Taking the oldest candidate first is our addition: without it the longest documents would never be chosen.

The order of documents is a pure function of (seed, epoch), and packing depends only on their lengths. So every rank
computes the same rows and reads its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np

from trainer.data.dataset import Dataset
from trainer.data.loader import Batch, LoaderState, SplitLoader, build_batch, shuffle_positions
from trainer.data.shards import TokenStream

CANDIDATES = 4096
"""Documents to choose from. With lengths like those of web pages (log-normal, median 600 tokens), rows of 2,048 tokens
lose 17.3, 15.1 or 13.5 % of the tokens with 256, 1,024 or 4,096 candidates; 12.6 % cannot fit into any row."""
SCAN_TOKENS = 1 << 22  # tokens scanned at a time for the starts of documents
SHUFFLE_AHEAD = 1024  # documents whose shuffled positions are computed at a time
WASTE_SAMPLE = 20_000  # documents that `waste` is estimated on


class BestFitPacker:
    """Pack documents of these lengths into an endless sequence of rows of exactly `size` tokens.

    A *position* is a document's index in the shuffled order, counted through all epochs.
    """

    def __init__(self, lengths: np.ndarray, size: int, seed: int, candidates: int = CANDIDATES) -> None:
        self.lengths, self.size, self.seed, self.candidates = lengths, size, seed, min(candidates, len(lengths))
        self.drawn = 0  # positions that became candidates
        self.served = self.cropped = 0  # tokens of all documents used so far; cropped tokens among them
        self._waiting: dict[int, tuple[int, int]] = {}  # position -> (document, length), the oldest first
        self._by_length: list[tuple[int, int]] = []  # (length, -position): of equal lengths the oldest comes last
        self._next: list[tuple[int, int]] = []  # (document, length) computed ahead, the next one last

    def next_row(self) -> list[tuple[int, int]]:
        """Return the next row as (document, number of tokens from its start), in order; the last may be cropped."""
        self._refill()
        row = [self._take(next(iter(self._waiting)), self.size)]
        space = self.size - row[0][1]
        while space:
            self._refill()
            fitting = bisect_right(self._by_length, (space, 1))
            row.append(self._take(-self._by_length[max(fitting - 1, 0)][1], space))
            space -= row[-1][1]
        return row

    def state_dict(self) -> LoaderState:
        counts = {"drawn": self.drawn, "served": self.served, "cropped": self.cropped}
        return {"waiting": list(self._waiting), **counts}

    def load_state_dict(self, state: LoaderState) -> None:
        waiting = state["waiting"]
        self._waiting = dict(zip(waiting, self._find_documents(np.array(waiting, dtype=np.int64)), strict=True))
        self._by_length = sorted((length, -position) for position, (_, length) in self._waiting.items())
        self.drawn, self.served, self.cropped = state["drawn"], state["served"], state["cropped"]
        self._next = []

    def _take(self, position: int, space: int) -> tuple[int, int]:
        """Remove a candidate and return it with its length, cropped to the space in the row."""
        document, length = self._waiting.pop(position)
        del self._by_length[bisect_left(self._by_length, (length, -position))]
        taken = min(length, space)
        self.served += length
        self.cropped += length - taken
        return document, taken

    def _refill(self) -> None:
        while len(self._waiting) < self.candidates:
            if not self._next:
                ahead = min(SHUFFLE_AHEAD, len(self.lengths))
                self._next = self._find_documents(np.arange(self.drawn, self.drawn + ahead, dtype=np.int64))[::-1]
            self._waiting[self.drawn] = document = self._next.pop()
            insort(self._by_length, (document[1], -self.drawn))
            self.drawn += 1

    def _find_documents(self, positions: np.ndarray) -> list[tuple[int, int]]:
        """Return (document, length) of each position."""
        documents = shuffle_positions(positions, len(self.lengths), self.seed)
        return list(zip(documents.tolist(), self.lengths[documents].tolist(), strict=True))


class DocumentLoader(SplitLoader):
    """Batches of packed documents of one split, see the module's docstring."""

    DATA_FIELDS = ("seed", "length", "documents")

    def __init__(
        self, dataset: Dataset, split: str, batch: int, length: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> None:
        super().__init__(dataset, split, batch, length, seed, rank, ranks)
        self._starts = find_document_starts(self._stream, dataset.tokenizer.end_of_text)
        lengths = np.diff(self._starts, append=len(self._stream))
        self.documents = len(lengths)
        self.waste = estimate_waste(lengths, length + 1, seed)
        self._packer = BestFitPacker(lengths, length + 1, seed)

    def next_batch(self) -> Batch:
        rows = [self._packer.next_row() for _ in range(self.batch * self.ranks)]
        self.position += len(rows)
        rank_rows = rows[self.rank * self.batch : (self.rank + 1) * self.batch]
        return build_batch(np.stack([self._read_row(row) for row in rank_rows]))

    def state_dict(self) -> LoaderState:
        return super().state_dict() | self._packer.state_dict()

    def load_state_dict(self, state: LoaderState) -> None:
        super().load_state_dict(state)
        self._packer.load_state_dict(state)

    def _read_row(self, row: list[tuple[int, int]]) -> np.ndarray:
        return np.concatenate([self._stream.read_tokens(int(self._starts[document]), taken) for document, taken in row])


def find_document_starts(stream: TokenStream, end_of_text: int) -> np.ndarray:
    """Return the positions of all end-of-text tokens. Reads the whole split, about 1 GB/s."""
    parts = []
    for first in range(0, len(stream), SCAN_TOKENS):
        tokens = stream.read_tokens(first, min(SCAN_TOKENS, len(stream) - first))
        parts.append(np.flatnonzero(tokens == end_of_text) + first)
    starts = np.concatenate(parts)
    assert starts[:1].tolist() == [0], "a dataset's tokens begin with an end-of-text token"
    return starts


def estimate_waste(lengths: np.ndarray, size: int, seed: int) -> float:
    """Return the share of tokens that rows of this size crop, measured on the first documents of this order."""
    packer = BestFitPacker(lengths, size, seed)
    while packer.drawn < min(len(lengths), WASTE_SAMPLE) + len(packer._waiting):
        packer.next_row()
    return packer.cropped / packer.served
