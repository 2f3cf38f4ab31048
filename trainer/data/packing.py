"""Rows that begin where a document begins: BOS-aligned best-fit packing.

In packed tokens each document follows an end-of-text token, which is what a model sees before any text; here every row
begins with one. A row takes the document that has waited longest, then again and again the longest of the waiting ones
that still fits; when none does, the shortest is cropped and fills the row to its last token. So no token comes without
the start of its document before it in the row, no row has padding, and what cropping leaves out is lost for that epoch:
that is the price, `waste`.

Best-fit packing is due to Ding et al. (arXiv 2404.10830; there without the rule about starts); nanochat crops as we do.
Taking the oldest first is ours: without it the longest documents wait for ever.

Documents come in an order that is a pure function of (seed, epoch), and packing looks at their lengths only: every
rank computes the same rows and reads its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

import numpy as np

from trainer.data.dataset import Dataset
from trainer.data.loader import Batch, State, in_and_out, same_data, stream_of
from trainer.data.permutation import shuffled
from trainer.data.shards import TokenStream

WAITING = 4096
"""Documents to choose from. With lengths like those of web pages (log-normal, median 600 tokens) rows of 2,048 lose
17.3, 15.1 or 13.5 % of the tokens with 256, 1,024 or 4,096; 12.6 % are in tails that no row has room for."""
CHUNK = 1 << 22
"""Tokens looked at together in the search for the starts of documents."""
DRAW = 1024
"""Documents whose place in the shuffled order is computed together."""
SAMPLE = 20_000
"""Documents that the waste is measured on."""


class Packer:
    """An endless run of rows of exactly `size` tokens, over documents of these lengths.

    A document's *ticket* is its place in the shuffled order, counted on over the epochs.
    """

    def __init__(self, lengths: np.ndarray, size: int, seed: int, choice: int = WAITING) -> None:
        self.lengths, self.size, self.seed, self.choice = lengths, size, seed, min(choice, len(lengths))
        self.drawn = self.served = self.cropped = 0  # tickets; tokens of served documents; those of them left out
        self._waiting: dict[int, tuple[int, int]] = {}  # ticket -> (document, length), the oldest first
        self._by_length: list[tuple[int, int]] = []  # (length, -ticket): of equal lengths the oldest comes last
        self._next: list[tuple[int, int]] = []  # (document, length) drawn ahead, the next one last

    def row(self) -> list[tuple[int, int]]:
        """Return the next row as (document, tokens from its start), in order; the last may be cropped."""
        self._refill()
        row = [self._take(next(iter(self._waiting)), self.size)]
        room = self.size - row[0][1]
        while room:
            self._refill()
            fitting = bisect_right(self._by_length, (room, 1))
            row.append(self._take(-self._by_length[max(fitting - 1, 0)][1], room))
            room -= row[-1][1]
        return row

    def state(self) -> State:
        counts = {"drawn": self.drawn, "served": self.served, "cropped": self.cropped}
        return {"waiting": list(self._waiting), **counts}

    def restore(self, state: State) -> None:
        tickets = state["waiting"]
        self._waiting = dict(zip(tickets, self._documents(np.array(tickets, dtype=np.int64)), strict=True))
        self._by_length = sorted((length, -ticket) for ticket, (_, length) in self._waiting.items())
        self.drawn, self.served, self.cropped = state["drawn"], state["served"], state["cropped"]
        self._next = []

    def _take(self, ticket: int, room: int) -> tuple[int, int]:
        """Serve a waiting document, cropped to the room there is."""
        document, length = self._waiting.pop(ticket)
        del self._by_length[bisect_left(self._by_length, (length, -ticket))]
        taken = min(length, room)
        self.served += length
        self.cropped += length - taken
        return document, taken

    def _refill(self) -> None:
        while len(self._waiting) < self.choice:
            if not self._next:
                ahead = min(DRAW, len(self.lengths))
                self._next = self._documents(np.arange(self.drawn, self.drawn + ahead, dtype=np.int64))[::-1]
            self._waiting[self.drawn] = document = self._next.pop()
            insort(self._by_length, (document[1], -self.drawn))
            self.drawn += 1

    def _documents(self, tickets: np.ndarray) -> list[tuple[int, int]]:
        """(document, length) of each ticket."""
        documents = shuffled(tickets, len(self.lengths), self.seed)
        return list(zip(documents.tolist(), self.lengths[documents].tolist(), strict=True))


class DocumentLoader:
    """An endless run of batches over one split; each row begins with the start of a document.

    With several ranks each takes its part of every step: together they see what one would with `batch * ranks`.
    """

    def __init__(
        self, dataset: Dataset, split: str, batch: int, length: int, seed: int, rank: int = 0, ranks: int = 1
    ) -> None:
        assert batch > 0
        assert 0 <= rank < ranks
        self.batch, self.length, self.seed, self.rank, self.ranks = batch, length, seed, rank, ranks
        self._stream = stream_of(dataset, split, length)
        self._starts = starts(self._stream, dataset.tokenizer.end_of_text)
        lengths = np.diff(self._starts, append=len(self._stream))
        self.documents = len(lengths)
        self.position = 0  # rows handed out, over all ranks
        self.waste = waste(lengths, length + 1, seed)
        self._packer = Packer(lengths, length + 1, seed)

    def next(self) -> Batch:
        rows = [self._packer.row() for _ in range(self.batch * self.ranks)]
        self.position += len(rows)
        mine = rows[self.rank * self.batch : (self.rank + 1) * self.batch]
        return in_and_out(np.stack([self._read(row) for row in mine]))

    def state(self) -> State:
        about = {"position": self.position, "seed": self.seed, "length": self.length, "documents": self.documents}
        return {**about, **self._packer.state()}

    def restore(self, state: State) -> None:
        same_data(state, {name: getattr(self, name) for name in ("seed", "length", "documents")})
        self.position = state["position"]
        self._packer.restore(state)

    def _read(self, row: list[tuple[int, int]]) -> np.ndarray:
        return np.concatenate([self._stream.read(int(self._starts[document]), taken) for document, taken in row])


def starts(stream: TokenStream, end_of_text: int) -> np.ndarray:
    """Where each document begins: the places of end-of-text tokens. Reads the whole split, about 1 GB a second."""
    found = []
    for place in range(0, len(stream), CHUNK):
        part = stream.read(place, min(CHUNK, len(stream) - place))
        found.append(np.flatnonzero(part == end_of_text) + place)
    places = np.concatenate(found)
    assert places[:1].tolist() == [0], "a dataset's tokens begin with an end-of-text token"
    return places


def waste(lengths: np.ndarray, size: int, seed: int) -> float:
    """The share of tokens that rows of this size leave out, measured on the first documents of this order."""
    packer = Packer(lengths, size, seed)
    while packer.drawn < min(len(lengths), SAMPLE) + len(packer._waiting):
        packer.row()
    return packer.cropped / packer.served
