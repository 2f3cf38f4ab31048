"""`dailytrain prepare`: prepare a dataset from a corpus, or find it in the cache."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence

from trainer.accounting.budget import parse_size
from trainer.cli import Parser
from trainer.data.corpora import KINDS, describe_corpora
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.errors import ExitCode, UserError, print_error


def main(argv: Sequence[str] | None = None) -> int:
    """Print the dataset's path, hash and counts."""
    options = build_parser().parse_args(argv)
    if options.list:
        print(format_corpora())  # noqa: T201
        return ExitCode.OK
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM stops like Ctrl-C
    try:
        limit = parse_size(options.limit_bytes) if options.limit_bytes is not None else None
        names = (options.corpus, options.tokenizer, options.out)
        dataset = prepare_dataset(*names, limit, progress=not options.quiet)
    except UserError as error:
        return print_error("dailytrain prepare", error, ExitCode.USER_ERROR)
    except KeyboardInterrupt:
        return print_error("dailytrain prepare", "interrupted; the same command continues here", ExitCode.INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, previous)
    print(json.dumps(build_json(dataset)) if options.json else format_summary(dataset))  # noqa: T201
    return ExitCode.OK


def build_parser() -> Parser:
    parser = Parser(prog="dailytrain prepare", description=__doc__)
    kinds = ", ".join(sorted(KINDS))
    corpus = parser.add_mutually_exclusive_group(required=True)
    corpus.add_argument("--corpus", help=f"one of {kinds}; files takes globs: files:books/*.jsonl.xz")
    corpus.add_argument("--list", action="store_true", help="print license, size and source of each corpus")
    parser.add_argument(
        "--tokenizer", default="bpe:8192", help="bpe:SIZE, gpt2:FOLDER, world:FILE or a tokenizer.json (%(default)s)"
    )
    parser.add_argument("--limit-bytes", metavar="SIZE", help="take only this much text, such as 16MiB")
    parser.add_argument("--out", metavar="DIR", help="folder to write: the dataset (in the cache)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def format_corpora() -> str:
    lines = []
    for kind, info in describe_corpora().items():
        lines += [kind, f"  license: {info.license}", f"  size:    {info.size}", f"  source:  {info.source}"]
        lines += [f"  results: {info.public_results}"] if info.public_results else []
    return "\n".join(lines)


def build_json(dataset: Dataset) -> dict[str, object]:
    return {
        "path": str(dataset.folder),
        "hash": dataset.hash,
        "vocabulary_size": dataset.tokenizer.vocabulary_size,
        "tokenizer_sha256": dataset.manifest["tokenizer"]["sha256"],
        "splits": {
            name: {count: split[count] for count in ("documents", "tokens", "bytes")}
            for name, split in dataset.manifest["splits"].items()
        },
    }


def format_summary(dataset: Dataset) -> str:
    lines = [f"{dataset.folder}", f"hash {dataset.hash}"]
    for name, split in dataset.manifest["splits"].items():
        counts = f"{split['documents']:>9,} documents {split['tokens']:>13,} tokens {split['bytes']:>14,} bytes"
        lines.append(f"{name:5} {counts}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
