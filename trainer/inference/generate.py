"""Generate text for a visitor: `python -m trainer.inference.generate`, started by a node.

The model is `graph/` in the run's folder, or else the entry's Python, in the sandbox. Its output is untrusted and shown
as plain text only. Output: lines `{"kind": "text", "text": ...}` in `metrics.jsonl`, a few per second, and at the end
`result.json`, a `protocol.GenerateResult`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from trainer import errors
from trainer.checkpoint.graph_weights import load_graph_model
from trainer.checkpoint.store import load_model, read_run
from trainer.data.tokenizer import load_tokenizer
from trainer.graph.reading import read_traced
from trainer.inference.sampling import Sampler, TextGenerator, decode_stream, generate_tokens
from trainer.models.base import LanguageModel
from trainer.ops.devices import is_gpu_available
from trainer.protocol import GenerateOrder, GenerateResult

LINE_SECONDS = 0.2  # text generated within this time becomes one line

OUT_OF_MEMORY = "The model needs more memory than its limit."


def main(argv: list[str] | None = None) -> int:
    options = parse_arguments(argv)
    try:
        with errors.attribute_to_model("while it generated text"):
            result = run_generate_order(options.run, options.checkpoint, options.out)
    except (errors.ModelError, errors.UnusableCheckpointError) as error:
        traceback.print_exc()
        fault = errors.find_fault(error, is_graph=(options.run / "graph").is_dir())
        reason = OUT_OF_MEMORY if errors.is_out_of_memory(error.__cause__) else str(error)
        errors.write_failure(options.out, fault, reason)
        return errors.ExitCode.MODEL_ERROR if fault == "model" else errors.ExitCode.INFRASTRUCTURE
    (options.out / "result.json").write_text(result.model_dump_json())
    return errors.ExitCode.OK


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.inference.generate")
    parser.add_argument("run", type=Path, help="the run's folder, with order.json and tokenizer.json in it")
    parser.add_argument("--checkpoint", type=Path, required=True, help="the checkpoint's folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    return parser.parse_args(argv)


def run_generate_order(run: Path, checkpoint: Path, out: Path) -> GenerateResult:
    """Generate the text of the order in the run's folder."""
    order = GenerateOrder.model_validate_json((run / "order.json").read_bytes())
    tokenizer = load_tokenizer(run / "tokenizer.json")
    model = load_generating_model(run, checkpoint)
    started = time.monotonic()
    sampler = Sampler(order.temperature, top_p=order.top_p, seed=order.seed)
    generator = TextGenerator(model, int(read_run(run)["model"]["sequence_length"]))
    generator.add([tokenizer.end_of_text, *tokenizer.encode(order.prompt)])
    count = 0

    def count_tokens() -> Iterator[int]:
        nonlocal count
        for token in generate_tokens(generator, sampler, tokenizer.end_of_text, order.tokens):
            count += 1
            yield token

    with (out / "metrics.jsonl").open("w") as lines:
        for text in group_text(decode_stream(tokenizer, count_tokens()), LINE_SECONDS):
            lines.write(json.dumps({"kind": "text", "text": text}) + "\n")
            lines.flush()
    ended = "length" if count == order.tokens else "end of text"
    return GenerateResult(tokens=count, seconds=time.monotonic() - started, ended=ended)


def load_generating_model(run: Path, checkpoint: Path) -> LanguageModel:
    """Return the model from the run's graphs, or from the Python of its architecture, in evaluation mode."""
    device = "cuda" if is_gpu_available() else "cpu"
    if (run / "graph").is_dir():
        return load_graph_model(read_traced(run / "graph"), checkpoint).to(device).eval()
    return load_model(run, checkpoint, device)


def group_text(parts: Iterable[str], seconds: float) -> Iterator[str]:
    """Join parts that come within `seconds`. The first part is yielded immediately."""
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
