"""`dailytrain prepare`: make a dataset, or find it in the cache."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence

from trainer.cli.parser import Parser
from trainer.data.corpora import KINDS
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.data.sizes import parse_size


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, 2 for what the user can mend (one line on standard error), 130 when interrupted or stopped."""
    options = _parser().parse_args(argv)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a stop cleans up as Ctrl-C does
    try:
        limit = parse_size(options.limit_bytes) if options.limit_bytes is not None else None
        dataset = prepare_dataset(options.corpus, options.tokenizer, options.out, limit, progress=not options.quiet)
    except ValueError as error:
        return _failed(str(error), 2)
    except KeyboardInterrupt:
        return _failed("Interrupted; nothing was kept", 130)
    finally:
        signal.signal(signal.SIGTERM, before)
    print(json.dumps(_answer(dataset)) if options.json else _summary(dataset))  # noqa: T201
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="dailytrain prepare", description=__doc__)
    kinds = ", ".join(sorted(KINDS))
    parser.add_argument("--corpus", required=True, help=f"one of {kinds}; files takes globs: files:books/*.jsonl.xz")
    parser.add_argument(
        "--tokenizer", default="bpe:8192", help="bpe:SIZE, gpt2:FOLDER, world:FILE or a tokenizer.json (%(default)s)"
    )
    parser.add_argument("--limit-bytes", metavar="SIZE", help="take only so much text, such as 16MiB")
    parser.add_argument("--out", metavar="DIR", help="folder to write: the dataset (in the cache)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def _answer(dataset: Dataset) -> dict[str, object]:
    return {
        "path": str(dataset.folder),
        "hash": dataset.hash,
        "tokenizer_sha256": dataset.manifest["tokenizer"]["sha256"],
        "splits": {
            name: {count: split[count] for count in ("documents", "tokens", "bytes")}
            for name, split in dataset.manifest["splits"].items()
        },
    }


def _summary(dataset: Dataset) -> str:
    lines = [f"{dataset.folder}", f"hash {dataset.hash}"]
    for name, split in dataset.manifest["splits"].items():
        lines.append(
            f"{name:5} {split['documents']:>9,} documents {split['tokens']:>13,} tokens {split['bytes']:>14,} bytes"
        )
    return "\n".join(lines)


def _failed(sentence: str, code: int) -> int:
    print(sentence, file=sys.stderr)  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main())
