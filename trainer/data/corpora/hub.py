"""Stream the documents of a dataset on the Hugging Face Hub at a pinned revision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer.data.corpora import Corpus, Document
from trainer.errors import CorpusError, describe_exception

TIMEOUT = 20  # seconds for the first response of the Hub


def get_text(record: Mapping[str, Any]) -> str:
    return str(record["text"] or "")


@dataclass(frozen=True)
class HubSource:
    """A dataset of the Hub: its parts by name, and how to read a record."""

    name: str  # of the corpus, for messages
    repository: str
    revision: str
    parts: Mapping[str, str]  # argument of the corpus -> configuration on the Hub, or a pattern of files with a `*`
    columns: tuple[str, ...] = ("id", "text")
    read_text: Callable[[Mapping[str, Any]], str] = get_text

    def build_corpus(self, argument: str) -> Corpus:
        """Return the part named by `argument`, the first one if it is empty. Raise CorpusError for another one."""
        part = self.parts.get(argument or next(iter(self.parts)))
        if part is None:
            known = ", ".join(f"{self.name}:{part}" for part in self.parts)
            raise CorpusError(f"There is no corpus {self.name}:{argument}; known: {known} (--limit-bytes limits it)")
        source = {"repository": self.repository, "configuration": part, "revision": self.revision}
        stream = partial(HubStream, self, part)
        return Corpus(lambda: source, documents=lambda: iter(stream(None)), stream=stream)


class HubStream:
    """Documents of a part. Its state names the file and the row, so that earlier files are not downloaded again."""

    def __init__(self, source: HubSource, part: str, state: dict[str, Any] | None) -> None:
        self._source, self._part, self._state = source, part, state
        self._number: int = state["records"] if state else 0
        self._records: Any = None

    def __iter__(self) -> Iterator[Document]:
        # Errors of the Hub's client (no network, broken transfer, offline mode) come from its own classes or from
        # requests, httpx, aiohttp, fsspec or pyarrow. A list would be incomplete, and all mean the same here.
        try:
            self._records = self._open_records()
            for record in self._records:
                self._number += 1
                if text := self._source.read_text(record):
                    yield Document(str(record.get("id", self._number - 1)), text)
        except Exception as error:
            reason = describe_exception(error)
            raise CorpusError(
                f"{self._source.name} cannot be read from the Hugging Face Hub; is there a network? {reason}"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        return {"records": self._number, "stream": self._records.state_dict()}

    def _open_records(self) -> Any:
        import datasets
        from huggingface_hub import HfApi

        source, part = self._source, self._part
        # Check once with a short timeout: the streaming reader retries for minutes before it reports a missing network.
        HfApi().dataset_info(source.repository, revision=source.revision, timeout=TIMEOUT)
        selection = {"data_files": part} if "*" in part else {"name": part}
        records = datasets.load_dataset(
            source.repository, split="train", streaming=True, revision=source.revision, **selection
        ).select_columns(list(source.columns))
        if self._state:
            records.load_state_dict(self._state["stream"])
        return records
