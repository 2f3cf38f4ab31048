"""Generate text for a visitor: `python -m trainer.inference.generate`, started by a node in the sandbox.

An untrusted model runs in this process, so its output is untrusted and shown as plain text only. Output: lines
`{"kind": "text", "text": ...}` in `metrics.jsonl`, a few per second, and at the end `result.json`, a
`protocol.GenerateResult`.
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
from trainer.inference.sampling import Sampler, TextGenerator, decode_stream, generate_tokens
from trainer.models.base import LanguageModel
from trainer.protocol import GenerateOrder, GenerateResult

LINE_SECONDS = 0.2  # text generated within this time becomes one line

NO_ROOM = "The model needs more memory than it may have."


def main(argv: list[str] | None = None) -> int:
    options = parse_arguments(argv)
    try:
        with errors.attribute_to_model("while it wrote"):
            result = run_generate_order(options.run, options.checkpoint, options.out)
    except errors.ModelError as error:
        traceback.print_exc()
        errors.write_failure(options.out, "model", NO_ROOM if errors.is_out_of_memory(error.__cause__) else str(error))
        return errors.ExitCode.MODEL_ERROR
    (options.out / "result.json").write_text(result.model_dump_json())
    return errors.ExitCode.OK


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.inference.generate")
    parser.add_argument("run", type=Path, help="the run's folder, with order.json and tokenizer.json in it")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--out", type=Path, required=True, help="where the text goes")
    return parser.parse_args(argv)


def run_generate_order(run: Path, checkpoint: Path, out: Path) -> GenerateResult:
    """Generate the text of the order in the run's folder."""
    order = GenerateOrder.model_validate_json((run / "order.json").read_bytes())
    tokenizer = load_tokenizer(run / "tokenizer.json")
    model = load_model(run, checkpoint, "cuda" if torch.cuda.is_available() else "cpu")
    started = time.monotonic()
    tokens = TokenCounter(
        generate_order_tokens(model, tokenizer, order, int(read_run(run)["model"]["sequence_length"]))
    )
    with (out / "metrics.jsonl").open("w") as lines:
        for text in group_text(decode_stream(tokenizer, tokens), LINE_SECONDS):
            lines.write(json.dumps({"kind": "text", "text": text}) + "\n")
            lines.flush()
    return GenerateResult(
        tokens=tokens.count,
        seconds=time.monotonic() - started,
        ended="length" if tokens.count == order.tokens else "end of text",
    )


def generate_order_tokens(
    model: LanguageModel, tokenizer: Tokenizer, order: GenerateOrder, context: int
) -> Iterator[int]:
    """Yield the tokens that follow the prompt, which starts a new text."""
    sampler = Sampler(order.temperature, top_p=order.top_p, seed=order.seed)
    reader = TextGenerator(model, context)
    reader.add([tokenizer.end_of_text, *tokenizer.encode(order.prompt)])
    return generate_tokens(reader, sampler, tokenizer.end_of_text, order.tokens)


class TokenCounter:
    """Iterates over tokens and counts them."""

    def __init__(self, tokens: Iterator[int]) -> None:
        self._tokens = tokens
        self.count = 0

    def __iter__(self) -> Iterator[int]:
        for token in self._tokens:
            self.count += 1
            yield token


def group_text(parts: Iterable[str], seconds: float) -> Iterator[str]:
    """Join parts that come within `seconds`. The first part is yielded at once: a visitor is waiting."""
    buffer, last = "", 0.0
    for part in parts:
        buffer += part
        if time.monotonic() - last >= seconds:
            yield buffer
            buffer, last = "", time.monotonic()
    if buffer:
        yield buffer


if __name__ == "__main__":
    sys.exit(main())
