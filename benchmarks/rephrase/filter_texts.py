"""Documents to compare filters on: prose of four kinds, and seven kinds of text that a campaign should not rephrase.

Prose, tables, lists and data are from the folder of `DAILYTRAIN_DATA`, code from Python's standard library. The other
kinds are made from the same prose: shuffled words or letters, loops, and repeated paragraphs.
"""

from __future__ import annotations

import csv
import json
import lzma
import random
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

CHARACTERS = 2_000
"""Length of a document that is cut out of a longer text."""
PER_KIND = 60
BAD_PER_KIND = 20
ARTICLE = "\n = "
LOOP_WORDS = (1, 5, 12)
LOOP_SHARES = (0.25, 0.5, 0.75)


def read_documents(data: Path) -> dict[str, list[str]]:
    """Return documents by kind, always the same for one version of Python."""
    text, rng = data / "text", random.Random(1)
    web = [json.loads(line)["text"] for line in (text / "c4_sample" / "c4_sample.jsonl").open(encoding="utf-8")]
    books = list(read_books(text / "gutenberg" / "validation.jsonl.xz"))
    plays = list(cut_paragraphs((text / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")))
    kinds = {"web": web, "books": books, "articles": read_articles(text / "wikitext-2-raw"), "plays": plays}
    for name in ("books", "articles", "plays"):
        kinds[name] = rng.sample(kinds[name], min(PER_KIND, len(kinds[name])))
    with (text / "gutenberg" / "books.tsv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    kinds["code"] = list(read_code(rng))
    kinds["tables"] = [" | ".join(row) for row in rows]
    kinds["lists"] = [row[3] for row in rows]
    for name in ("tables", "lists"):
        kinds[name] = ["\n".join(rng.sample(kinds[name], 40)) for _ in range(BAD_PER_KIND)]
    kinds["data"] = list(read_data(data / "tokenizers" / "gpt2" / "encoder.json"))
    sample = rng.sample(books + web, BAD_PER_KIND)
    kinds["words shuffled"] = [shuffle(passage.split(), rng, " ") for passage in sample]
    kinds["letters shuffled"] = [shuffle(list(passage), rng, "") for passage in sample]
    kinds["loops"] = [build_loop(passage, 12, 0.9) for passage in sample]
    return kinds


def read_books(file: Path) -> Iterator[str]:
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield from cut_paragraphs(json.loads(line)["text"])


def read_articles(folder: Path) -> list[str]:
    """Return Wikipedia's articles; a line such as ` = Title = ` begins one."""
    text = "".join((folder / name).read_text(encoding="utf-8") for name in ("wiki.valid.raw", "wiki.test.raw"))
    pieces = text.replace("\n = = ", "\n == ").split(ARTICLE)
    return [piece.strip()[: 2 * CHARACTERS] for piece in pieces if len(piece) > CHARACTERS]


def cut_paragraphs(text: str) -> Iterator[str]:
    """Yield passages of whole paragraphs, at least `CHARACTERS` long."""
    passage: list[str] = []
    for paragraph in text.split("\n\n"):
        passage.append(paragraph)
        if sum(map(len, passage)) >= CHARACTERS:
            yield "\n\n".join(passage)
            passage = []


def read_code(rng: random.Random) -> Iterator[str]:
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    sources = [file.read_text(encoding="utf-8") for file in files]
    for source in rng.sample([source for source in sources if len(source) > 3 * CHARACTERS], BAD_PER_KIND):
        yield source[CHARACTERS : 2 * CHARACTERS]  # after the license and the description


def read_data(file: Path) -> Iterator[str]:
    """Yield pieces of an indented JSON object."""
    text = json.dumps(json.loads(file.read_text(encoding="utf-8")), indent=1)
    for start in range(0, BAD_PER_KIND * CHARACTERS, CHARACTERS):
        yield text[start : start + CHARACTERS]


def shuffle(parts: list[str], rng: random.Random, separator: str) -> str:
    return separator.join(rng.sample(parts, len(parts)))


def build_loop(passage: str, words: int, share: float) -> str:
    """Return the passage with its last part, `share` of its words, replaced by a loop over `words` words."""
    parts = passage.split()
    kept = int(len(parts) * (1 - share))
    phrase = parts[max(0, kept - words) : max(kept, words)]
    return " ".join([*parts[:kept], *(phrase[number % len(phrase)] for number in range(len(parts) - kept))])


def build_outputs(passages: Iterable[str]) -> dict[str, list[str]]:
    """Return texts of about 300 tokens as a model may write them: prose, and prose that ends in a loop."""
    chunks = [" ".join(passage.split())[:1200] for passage in passages]
    outputs = {"prose": chunks}
    for words in LOOP_WORDS:
        for share in LOOP_SHARES:
            name = f"{share:.0%} loop of {words} word{'s' if words > 1 else ''}"
            outputs[name] = [build_loop(chunk, words, share) for chunk in chunks]
    return outputs
