"""What a packet asks for, as it is said over the wire and as it is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

from scheduler.models import Campaign, Handout, Packet
from trainer import protocol

Pair = tuple[int, str]
"""A chunk of the document, by its index there, and a style."""


def pairs(packet: Packet, campaign: Campaign) -> list[Pair]:
    """Return all that a packet has to become."""
    return [(packet.first + index, style) for index in range(len(packet.chunks)) for style in campaign.styles]


def lacking(packet: Packet, campaign: Campaign) -> list[Pair]:
    """Return what of it is not there yet."""
    if packet.lacking is None:
        return pairs(packet, campaign)
    return [(chunk, style) for chunk, style, _ in packet.lacking]


def wanted(packet: Packet, campaign: Campaign, purpose: str) -> list[Pair]:
    """Return what is asked of whoever is given it. What is only compared is asked for as if it were new."""
    return lacking(packet, campaign) if purpose == Handout.Purpose.WORK else pairs(packet, campaign)


def source(packet: Packet, chunk: int) -> str:
    text: str = packet.chunks[chunk - packet.first]
    return text


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def chunks(packet: Packet, asked: Sequence[Pair]) -> Iterator[protocol.Chunk]:
    styles: dict[int, list[str]] = {}
    for chunk, style in asked:
        styles.setdefault(chunk, []).append(style)
    for index in sorted(styles):
        text = source(packet, index)
        yield protocol.Chunk(index=index, text=text, sha256=sha256(text), styles=tuple(styles[index]))  # type: ignore[arg-type]


def message(packet: Packet, campaign: Campaign, purpose: str) -> protocol.Packet:
    asked = wanted(packet, campaign, purpose)
    return protocol.Packet(packet=packet.pk, document=packet.document, chunks=tuple(chunks(packet, asked)))


def order(campaign: Campaign) -> protocol.RephraseOrder:
    """Return what a sitting is told: the same for all of a campaign."""
    return protocol.RephraseOrder(
        campaign=campaign.slug,
        model=campaign.model,
        revision=campaign.model_revision,
        sampling=protocol.Sampling.model_validate(campaign.sampling),
        styles=tuple(campaign.styles),
        prompt_version=campaign.prompt_version,
        language=campaign.language,
        thresholds=campaign.thresholds or None,
    )


def without(rows: Iterable[list[object]], done: set[Pair]) -> list[list[object]]:
    """Return the rows of `Packet.lacking` that are still so."""
    return [row for row in rows if (row[0], row[1]) not in done]
