"""`dailytrain draw DATASET --secret FILE --out FILE`: draw the test text of a season by its secret.

A trusted node draws what it scores. When the season has ended, everybody can draw the same text and score it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.cli import Parser, parse_positive_integer
from trainer.data.dataset import Dataset
from trainer.errors import ExitCode, UserError
from trainer.scoring.heldout_text import draw_test_documents, encode_documents


def main(argv: Sequence[str] | None = None) -> int:
    """Write the text; print its size and hash, and the commitment to the secret."""
    parser = Parser(prog="dailytrain draw", description="Draw the test text of a season by its secret.")
    parser.add_argument("dataset", type=Path, metavar="DATASET", help="a prepared dataset with its test split")
    parser.add_argument("--secret", type=Path, required=True, metavar="FILE", help="file with the season's secret")
    parser.add_argument("--limit-tokens", type=parse_positive_integer, help="the season's tokens of test text")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write: JSON lines")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    secret = read_secret(options.secret)
    record = write_test_text(Dataset.open(options.dataset), secret, options.limit_tokens, options.out)
    if options.json:
        print(json.dumps(record))  # noqa: T201 (the command's output)
    else:
        print("\n".join(f"{name:10} {value}" for name, value in record.items()))  # noqa: T201
    return ExitCode.OK


def read_secret(path: Path) -> bytes:
    try:
        text = path.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise UserError(f"{path} holds no secret of a season: 64 hexadecimal digits")
    return bytes.fromhex(text)


def write_test_text(dataset: Dataset, secret: bytes, limit_tokens: int | None, out: Path) -> dict[str, Any]:
    """Write the documents that a score reads, the last one whole."""
    documents = draw_test_documents(dataset, secret)
    encoded = encode_documents(documents, dataset.tokenizer, limit_tokens)
    drawn = documents[: len(encoded)]  # no document of a dataset is empty
    lines = (json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False) for document in drawn)
    content = "".join(f"{line}\n" for line in lines).encode()
    try:
        out.write_bytes(content)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}") from error
    return {
        "dataset": dataset.hash,
        "commitment": hashlib.sha256(secret).hexdigest(),
        "documents": len(encoded),
        "tokens": sum(len(text.tokens) for text in encoded),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
