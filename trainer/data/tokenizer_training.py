"""Train a byte-level BPE on texts."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator

from tokenizers import models, pre_tokenizers, trainers

from trainer.data.tokenizer import END_OF_TEXT, Tokenizer, build_byte_level, split_text
from trainer.data.tokenizer_names import check_vocabulary_size

LONGEST_WORD = 256  # characters that a word of a training text may have
_LONG_RUN = re.compile(rf"\S{{{LONGEST_WORD}}}|\s{{{LONGEST_WORD}}}")


def train_bpe(texts: Iterable[str], vocabulary_size: int, progress: bool = False) -> Tokenizer:
    """Train a byte-level BPE of up to `vocabulary_size` entries, including the 256 bytes and the end of text.

    The result is deterministic. A short text gives a smaller vocabulary, since pairs that occur once are not merged.
    """
    check_vocabulary_size(vocabulary_size)
    backend = build_byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=progress,
    )
    pieces = (part for text in texts for piece in split_text(text) for part in split_long_words(piece))
    run_interruptibly(lambda: backend.train_from_iterator(pieces, trainer))
    return Tokenizer(backend.to_str().encode())


def run_interruptibly(work: Callable[[], None]) -> None:
    """Run work of a library that does not return to Python, so that signals are handled meanwhile."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)  # it ends with the process
    thread.start()
    while thread.is_alive():
        thread.join(0.5)  # a signal that comes just before the wait does not end it
    if errors:
        raise errors[0]


def split_long_words(text: str) -> Iterator[str]:
    """Yield the text, cut inside runs of more than `LONGEST_WORD` characters without a space, or of spaces.

    Training takes time in proportion to the length of the words times their number of pairs: 3 MB of base64 would take
    40 minutes.
    """
    start = 0
    for run in _LONG_RUN.finditer(text):
        yield text[start : run.end()]
        start = run.end()
    yield text[start:]
