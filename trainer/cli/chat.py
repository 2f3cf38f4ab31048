"""`dailytrain chat RUN`: talk with a trained model, its state kept over the turns.

What we train are base models: they go on with a text, and nobody has taught them to answer. So the conversation is a
text as well, `User: ...` and `Assistant: ...` in turn, and an answer ends where the model begins the user's next line.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Self

from trainer.cli.parser import Parser
from trainer.cli.sample import add_writing_flags, opened, sampler_of
from trainer.data.tokenizer import Tokenizer
from trainer.inference.sampling import Reader, Sampler, pieces, stream
from trainer.models.base import LanguageModel

USER, ASSISTANT = "User:", "Assistant:"

HELP = """\
  /reset  forget the conversation
  /help   this
  /quit   leave, as does Ctrl-D
Ctrl-C ends an answer, and leaves at the prompt. This is a base model: it goes on with the text
"User: ... Assistant: ..." and was not trained to follow instructions.
"""


class Conversation:
    """A transcript that grows: its tokens are read once, whoever wrote them."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, context: int, sampler: Sampler) -> None:
        self.model, self.tokenizer, self.context, self.sampler = model, tokenizer, context, sampler
        self.reset()

    def reset(self) -> None:
        self.reader = Reader(self.model, self.context)
        self.reader.add([self.tokenizer.end_of_text])

    def answer(self, line: str, tokens: int) -> Iterator[str]:
        """Say a line; yield the answer piece by piece. It may be left before its end and counts as far as it went."""
        opening = "" if self.is_users_turn() else USER if self.is_new() else f"\n{USER}"
        self.reader.add(self.tokenizer.encode(f"{opening} {line}\n{ASSISTANT}"))
        answered = stream(self.reader, self.sampler, self.tokenizer.end_of_text, tokens)
        yield from until(f"\n{USER}", pieces(self.tokenizer, answered))

    def is_new(self) -> bool:
        return self.reader.text == [self.tokenizer.end_of_text]

    def is_users_turn(self) -> bool:
        """Has the model begun the user's next line itself?"""
        return self.tokenizer.decode(self.reader.text[-2 * len(USER) :]).endswith(f"\n{USER}")


def until(stop: str, parts: Iterable[str]) -> Iterator[str]:
    """Yield text up to a stop word; what might become one is held back until it is clear."""
    held = ""
    for part in parts:
        held += part
        before, found, _ = held.partition(stop)
        if found:
            held = before
            break
        safe = len(held) - overlap(held, stop)
        if safe:
            yield held[:safe]
        held = held[safe:]
    if held:
        yield held


def overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of a text are a beginning of the stop word."""
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)


class Patience:
    """Ctrl-C while an answer is written: the first ends the answer, the second the program."""

    def __enter__(self) -> Self:
        self.asked = False
        self.before = signal.signal(signal.SIGINT, self.heard)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self.before)

    def heard(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


def main(argv: Sequence[str] | None = None) -> int:
    """Answer line by line; return 2, with one line on standard error, for a run that cannot be used."""
    options = arguments(argv)
    try:
        sampler = sampler_of(options)
        model, tokenizer, context = opened(options)
    except ValueError as error:
        sys.stderr.write(f"dailytrain chat: {' '.join(str(error).split())}\n")
        return 2
    conversation = Conversation(model, tokenizer, context, sampler)
    if sys.stdin.isatty():
        sys.stderr.write(f"{options.run.name}: a base model, {context} tokens of memory. /help says more.\n")
    with suppress(KeyboardInterrupt, EOFError):
        while (line := ask()) != "/quit":
            obey(line, conversation, options.tokens)
    return 0


def ask() -> str:
    """Read a line; without a terminal no prompt is shown. Raises EOFError at the end."""
    return input("> " if sys.stdin.isatty() else "").strip()


def obey(line: str, conversation: Conversation, tokens: int) -> None:
    """Do what a line says, or answer it on standard output."""
    if line == "/reset":
        conversation.reset()
    elif line.startswith("/"):
        sys.stderr.write(HELP)
    elif line:
        answer(line, conversation, tokens)


def answer(line: str, conversation: Conversation, tokens: int) -> None:
    with Patience() as patience:
        for number, piece in enumerate(conversation.answer(line, tokens)):
            sys.stdout.write(piece if number else piece.lstrip())
            sys.stdout.flush()
            if patience.asked:
                break
    sys.stdout.write("\n")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="dailytrain chat", description="Talk with a run's model.", epilog="In it, /help says more.")
    add_writing_flags(parser, tokens=200)
    return parser.parse_args(argv)
