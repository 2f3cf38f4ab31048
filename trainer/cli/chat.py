"""`dailytrain chat RUN`: chat with a run's model, which keeps its state between turns.

Our models are base models, which only continue a text. The conversation is a text of `User: ...` and
`Assistant: ...` lines. A reply ends where the model begins the user's next line.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Self

from trainer.cli import Parser
from trainer.cli.sample import add_generation_flags, build_sampler, load_generator
from trainer.data.tokenizer import Tokenizer
from trainer.inference.sampling import Sampler, TextGenerator, decode_stream, generate_tokens
from trainer.models.base import LanguageModel

USER, ASSISTANT = "User:", "Assistant:"

HELP = """\
  /reset  clear the conversation
  /help   print this help
  /quit   leave, as does Ctrl-D
Ctrl-C ends an answer, and leaves at the prompt. This is a base model: it continues the text
"User: ... Assistant: ..." and was not trained to follow instructions.
"""


class Conversation:
    """A growing transcript. The model reads each token once."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, context: int, sampler: Sampler) -> None:
        self.model, self.tokenizer, self.context, self.sampler = model, tokenizer, context, sampler
        self.reset()

    def reset(self) -> None:
        self.generator = TextGenerator(self.model, self.context)
        self.generator.add([self.tokenizer.end_of_text])

    def generate_answer(self, line: str, tokens: int) -> Iterator[str]:
        """Add the user's line and yield the answer in pieces. A stopped answer stays in the transcript."""
        opening = "" if self.is_users_turn() else USER if self.is_new() else f"\n{USER}"
        self.generator.add(self.tokenizer.encode(f"{opening} {line}\n{ASSISTANT}"))
        answer = generate_tokens(self.generator, self.sampler, self.tokenizer.end_of_text, tokens)
        yield from stop_at(f"\n{USER}", decode_stream(self.tokenizer, answer))

    def is_new(self) -> bool:
        return self.generator.text == [self.tokenizer.end_of_text]

    def is_users_turn(self) -> bool:
        """Return whether the model has begun the user's next line itself."""
        return self.tokenizer.decode(self.generator.text[-2 * len(USER) :]).endswith(f"\n{USER}")


def stop_at(stop: str, parts: Iterable[str]) -> Iterator[str]:
    """Yield text up to a stop word. A possible beginning of it is buffered until it is decided."""
    buffer = ""
    for part in parts:
        buffer += part
        before, found, _ = buffer.partition(stop)
        if found:
            buffer = before
            break
        safe = len(buffer) - count_overlap(buffer, stop)
        if safe:
            yield buffer[:safe]
        buffer = buffer[safe:]
    if buffer:
        yield buffer


def count_overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of a text are a beginning of the stop word."""
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)


class InterruptHandler:
    """Ctrl-C during an answer: the first ends the answer, the second the program."""

    def __enter__(self) -> Self:
        self.is_requested = False
        self.before = signal.signal(signal.SIGINT, self.handle_signal)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self.before)

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True


def main(argv: Sequence[str] | None = None) -> int:
    """Answer line by line. Raise `UserError` for a run that cannot be used."""
    parser = Parser(prog="dailytrain chat", description="Chat with a run's model.", epilog="In it, type /help.")
    add_generation_flags(parser, max_tokens=200)
    options = parser.parse_args(argv)
    sampler = build_sampler(options)
    conversation = Conversation(*load_generator(options), sampler)
    if sys.stdin.isatty():
        sys.stderr.write(f"{options.run.name}: a base model, {conversation.context} tokens of memory. Type /help.\n")
    with suppress(KeyboardInterrupt, EOFError):
        while (line := read_line()) != "/quit":
            handle_line(line, conversation, options.max_tokens)
    return 0


def read_line() -> str:
    """Read a line; without a terminal no prompt is shown. Raises EOFError at the end."""
    return input("> " if sys.stdin.isatty() else "").strip()


def handle_line(line: str, conversation: Conversation, tokens: int) -> None:
    """Run a command, or answer a line on standard output."""
    if line == "/reset":
        conversation.reset()
    elif line.startswith("/"):
        sys.stderr.write(HELP)
    elif line:
        print_answer(line, conversation, tokens)


def print_answer(line: str, conversation: Conversation, tokens: int) -> None:
    with InterruptHandler() as interrupt:
        for number, piece in enumerate(conversation.generate_answer(line, tokens)):
            sys.stdout.write(piece if number else piece.lstrip())
            sys.stdout.flush()
            if interrupt.is_requested:
                break
    sys.stdout.write("\n")
