"""Rates of encoders in MB of text per CPU-second: `python -m benchmarks.encoders --corpus files:BOOKS.jsonl.xz`.

Every encoder gets the same pages of 3,000 characters, three times in turn; the best time counts. The ids of tiktoken
must equal those of `tokenizers`. rustbpe, which must be installed for this, trains its own vocabulary on the same text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import rustbpe

from trainer.data.corpora import open_corpus
from trainer.data.fast_encoder import PATTERN
from trainer.data.tokenizer import train_bpe

PAGE = 3000  # characters
REPEATS = 3
TRAINED_ON = 4000  # pages


def read_pages(corpus: str, characters: int) -> list[str]:
    pages: list[str] = []
    for document in open_corpus(corpus):
        pages += [document.text[start : start + PAGE] for start in range(0, len(document.text), PAGE)]
        if len(pages) * PAGE >= characters:
            break
    return pages[: characters // PAGE]


def measure_seconds(encode: Callable[[list[str]], object], pages: list[str]) -> float:
    start = time.process_time()
    encode(pages)
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--characters", type=int, default=16_000_000)
    args = parser.parse_args()
    pages = read_pages(args.corpus, args.characters)
    tokenizer, rust = train_bpe(pages[:TRAINED_ON], args.vocabulary), rustbpe.Tokenizer()
    rust.train_from_iterator(iter(pages[:TRAINED_ON]), args.vocabulary, pattern=PATTERN)
    encoders: dict[str, Callable[[list[str]], object]] = {
        "tokenizers, in batches": tokenizer._encode_pieces,
        "tiktoken": tokenizer.encode_batch,
        "rustbpe": rust.batch_encode,
    }
    assert tokenizer._encode_pieces(pages) == tokenizer.encode_batch(pages), "the ids differ"
    seconds = {name: min(measure_seconds(encode, pages) for _ in range(REPEATS)) for name, encode in encoders.items()}
    size = sum(len(page.encode()) for page in pages)
    for name, best in seconds.items():
        print(f"{name:24}{size / best / 1e6:6.1f} MB per CPU-second")  # noqa: T201


if __name__ == "__main__":
    main()
