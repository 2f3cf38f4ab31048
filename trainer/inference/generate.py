"""A text for a visitor: `python -m trainer.inference.generate`, started by a node's agent in the sandbox.

A stranger's model writes here, in one process with our code, so nothing that it says is believed: what comes out is
text, and is shown as text. It comes as lines `{"kind": "text", "text": ...}` of `metrics.jsonl`, a few a second, and
ends with `result.json`, a `protocol.GenerateResult`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from trainer import errors
from trainer.checkpoint.store import load_model, read_run
from trainer.data.tokenizer import Tokenizer
from trainer.data.tokenizer_spec import load_tokenizer
from trainer.inference.sampling import Reader, Sampler, pieces, stream
from trainer.models.base import LanguageModel
from trainer.protocol import GenerateOrder, GenerateResult

LINE_SECONDS = 0.2
"""What is written within this time makes one line: a page shows it no sooner."""

NO_ROOM = "The model needs more memory than it may have."


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    try:
        with errors.attribute_to_model("while it wrote"):
            result = generate(options.run, options.checkpoint, options.out)
    except errors.ModelError as error:
        traceback.print_exc()
        errors.write_failure(options.out, "model", NO_ROOM if errors.is_out_of_memory(error.__cause__) else str(error))
        return errors.ExitCode.MODEL_ERROR
    (options.out / "result.json").write_text(result.model_dump_json())
    return errors.ExitCode.OK


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.inference.generate")
    parser.add_argument("run", type=Path, help="the run's folder, with order.json and tokenizer.json in it")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--out", type=Path, required=True, help="where the text goes")
    return parser.parse_args(argv)


def generate(run: Path, checkpoint: Path, out: Path) -> GenerateResult:
    """Write what the order in the run's folder asks for."""
    order = GenerateOrder.model_validate_json((run / "order.json").read_bytes())
    tokenizer = load_tokenizer(run / "tokenizer.json")
    model = load_model(run, checkpoint, "cuda" if torch.cuda.is_available() else "cpu")
    begun = time.monotonic()
    tokens = Counted(written(model, tokenizer, order, int(read_run(run)["model"]["sequence_length"])))
    with (out / "metrics.jsonl").open("w") as lines:
        for text in in_lines(pieces(tokenizer, tokens), LINE_SECONDS):
            lines.write(json.dumps({"kind": "text", "text": text}) + "\n")
            lines.flush()
    return GenerateResult(
        tokens=tokens.count,
        seconds=time.monotonic() - begun,
        ended="length" if tokens.count == order.tokens else "end of text",
    )


def written(model: LanguageModel, tokenizer: Tokenizer, order: GenerateOrder, context: int) -> Iterator[int]:
    """Yield the tokens that follow the prompt, which stands at the beginning of a text."""
    sampler = Sampler(order.temperature, top_p=order.top_p, seed=order.seed)
    reader = Reader(model, context)
    reader.add([tokenizer.end_of_text, *tokenizer.encode(order.prompt)])
    return stream(reader, sampler, tokenizer.end_of_text, order.tokens)


class Counted:
    """Tokens, and how many of them have been taken."""

    def __init__(self, tokens: Iterator[int]) -> None:
        self._tokens = tokens
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        for token in self._tokens:
            self.count += 1
            yield token


def in_lines(parts: Iterable[str], seconds: float) -> Iterator[str]:
    """Put together what comes within so many seconds. The first part goes at once: somebody is waiting."""
    held, last = "", 0.0
    for part in parts:
        held += part
        if time.monotonic() - last >= seconds:
            yield held
            held, last = "", time.monotonic()
    if held:
        yield held


if __name__ == "__main__":
    sys.exit(main())
