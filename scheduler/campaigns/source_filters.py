"""What of a source is worth rephrasing: long enough, in the campaign's language, not seen before, of good quality.

As cc_net does it (Wenzek et al. 2019, arXiv 1911.00359): paragraphs that came before are dropped, by the first 64 bits
of the SHA-1 of their normalised text; then the language, with a score of at least 0.5; documents under 300 characters
are dropped; quality comes in three buckets. Pure, but for the campaign whose settings are read.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from scheduler.campaigns.quality import Quality
from scheduler.campaigns.sources import Row
from scheduler.models import Campaign
from scheduler.sanitize import replace_unstorable
from trainer.rephrase import languages

DIGITS = re.compile(r"\d")
NOT_WORDS = re.compile(r"[^\w\s]|_")
SPACES = re.compile(r"\s+")
JUDGED_CHARACTERS = 5_000
"""So much of a document's start tells its language and its quality."""


@dataclass(frozen=True)
class Candidate:
    """A document that is long enough and in the right language, before anybody asked whether it is new."""

    row: Row
    paragraphs: tuple[str, ...]
    digests: tuple[int, ...]


@dataclass(frozen=True)
class Kept:
    row: Row
    text: str


def look(row: Row, campaign: Campaign) -> Candidate | str:
    """Return a candidate, or why the row is none."""
    if row.text is None:
        return "unreadable"
    text = replace_unstorable(row.text).strip()
    if len(text) < campaign.min_characters:
        return "short"
    if campaign.language:
        language, score = languages.classify_language(text[:JUDGED_CHARACTERS])
        if language != campaign.language or score < campaign.language_score:
            return "language"
    paragraphs = tuple(paragraphs_of(text))
    return Candidate(row, paragraphs, tuple(digest(paragraph) for paragraph in paragraphs))


def paragraphs_of(text: str) -> Iterable[str]:
    """Yield the paragraphs of a text: its lines, or what empty lines part where those are hard-wrapped."""
    wrapped = "\n\n" in text
    pieces = re.split(r"\n\s*\n", text) if wrapped else text.split("\n")
    return (piece.strip("\n") for piece in pieces if piece.strip())


def digest(paragraph: str) -> int:
    """Return 64 bits, as a signed number, that paragraphs share which differ in nothing that matters."""
    folded = unicodedata.normalize("NFD", paragraph.lower())
    folded = "".join(letter for letter in folded if unicodedata.category(letter) != "Mn")
    folded = SPACES.sub(" ", NOT_WORDS.sub("", DIGITS.sub("0", folded))).strip()
    return int.from_bytes(hashlib.sha1(folded.encode(), usedforsecurity=False).digest()[:8], "big", signed=True)


def choose(
    candidates: Sequence[Candidate],
    campaign: Campaign,
    seen: set[int],
    quality: Quality | None,
    dropped: dict[str, int],
) -> list[Kept]:
    """Return what is left of the candidates. `seen` grows by what is new; `dropped` counts what goes, by reason."""
    kept = []
    for candidate in candidates:
        text = new_text(candidate, campaign, seen, dropped)
        if len(text) < campaign.min_characters:
            add(dropped, "repeated")
        elif quality is not None and quality.bucket(text[:JUDGED_CHARACTERS]) not in campaign.buckets:
            add(dropped, "quality")
        else:
            kept.append(Kept(candidate.row, text))
    return kept


def new_text(candidate: Candidate, campaign: Campaign, seen: set[int], dropped: dict[str, int]) -> str:
    """Return a document without the paragraphs that came before."""
    if not campaign.drop_repeated:
        return "\n\n".join(candidate.paragraphs) if "\n\n" in (candidate.row.text or "") else whole(candidate)
    new = []
    for paragraph, number in zip(candidate.paragraphs, candidate.digests, strict=True):
        if number in seen:
            add(dropped, "paragraphs")
        else:
            seen.add(number)
            new.append(paragraph)
    if len(new) == len(candidate.paragraphs):
        return whole(candidate)
    return ("\n\n" if "\n\n" in (candidate.row.text or "") else "\n").join(new)


def whole(candidate: Candidate) -> str:
    return replace_unstorable(candidate.row.text or "").strip()


def add(counts: dict[str, int], reason: str, more: int = 1) -> None:
    counts[reason] = counts.get(reason, 0) + more


def together(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    """Return the sums."""
    return {reason: counts.get(reason, 0) + more.get(reason, 0) for reason in sorted({*counts, *more})}
