"""Selects the documents to rephrase: long enough, in the campaign's language, not seen before, of good quality.

Follows cc_net (Wenzek et al. 2019, arXiv 1911.00359): repeated paragraphs are dropped by the first 64 bits of the SHA-1
of their normalized text, then documents by language score (0.5), length (300 characters) and quality bucket.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from scheduler.campaigns.models import Campaign
from scheduler.campaigns.quality import QualityModel
from scheduler.campaigns.sources import SourceRow
from scheduler.sanitize import replace_unstorable
from trainer.rephrase import languages

DIGITS = re.compile(r"\d")
NOT_WORDS = re.compile(r"[^\w\s]|_")
SPACES = re.compile(r"\s+")
BLANK_LINE = re.compile(r"\n\s*\n")
SAMPLE_CHARACTERS = 5_000
"""Length of the document's start that language and quality are measured on."""


@dataclass(frozen=True)
class Document:
    """A row of the source with usable text."""

    row: SourceRow
    text: str


def build_document(row: SourceRow, campaign: Campaign) -> Document | str:
    """Return the row's document, or the reason to drop it, before the filters that depend on other documents."""
    if row.text is None:
        return "unreadable"
    text = replace_unstorable(row.text).strip()
    if len(text) < campaign.min_characters:
        return "short"
    if campaign.language:
        language, score = languages.classify_language(text[:SAMPLE_CHARACTERS])
        if language != campaign.language or score < campaign.language_score:
            return "language"
    return Document(row, text)


def hash_paragraphs(text: str) -> list[tuple[str, int]]:
    """Return the paragraphs of a text, each with its hash: separated by blank lines if it has any, else its lines."""
    pieces = BLANK_LINE.split(text) if "\n\n" in text else text.split("\n")
    paragraphs = [piece.strip("\n") for piece in pieces if piece.strip()]
    return [(paragraph, hash_paragraph(paragraph)) for paragraph in paragraphs]


def hash_paragraph(paragraph: str) -> int:
    """Return a signed 64-bit hash that ignores case, accents, punctuation, spaces and the values of digits."""
    text = unicodedata.normalize("NFD", paragraph.lower())
    text = "".join(letter for letter in text if unicodedata.category(letter) != "Mn")
    text = SPACES.sub(" ", NOT_WORDS.sub("", DIGITS.sub("0", text))).strip()
    return int.from_bytes(hashlib.sha1(text.encode(), usedforsecurity=False).digest()[:8], "big", signed=True)


def drop_repeated_paragraphs(
    documents: Iterable[tuple[Document, list[tuple[str, int]]]], seen: set[int], dropped: Counter[str]
) -> Iterator[Document]:
    """Yield each document without the paragraphs in `seen`, and add its new ones to `seen`.

    `documents`: each with its paragraphs and their hashes.
    """
    for document, paragraphs in documents:
        new = []
        for paragraph, digest in paragraphs:
            if digest not in seen:
                seen.add(digest)
                new.append(paragraph)
        if len(new) == len(paragraphs):
            yield document
        else:
            dropped["paragraphs"] += len(paragraphs) - len(new)
            yield Document(document.row, ("\n\n" if "\n\n" in document.text else "\n").join(new))


def select_documents(
    documents: Iterable[Document], campaign: Campaign, quality: QualityModel | None, dropped: Counter[str]
) -> list[Document]:
    """Return the documents that are still long enough and of a selected quality. Count the others in `dropped`."""
    selected = []
    for document in documents:
        if len(document.text) < campaign.min_characters:
            dropped["repeated"] += 1
        elif quality and quality.get_bucket(document.text[:SAMPLE_CHARACTERS]) not in campaign.quality_buckets:
            dropped["quality"] += 1
        else:
            selected.append(document)
    return selected
