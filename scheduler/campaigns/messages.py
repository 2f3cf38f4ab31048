"""Builds protocol messages from packets and campaigns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from scheduler.campaigns.models import Assignment, Campaign, Packet
from trainer import protocol

OutputKey = tuple[int, str]
"""Index of a chunk in the document, and a style."""


def get_output_keys(packet: Packet, campaign: Campaign) -> list[OutputKey]:
    """Return every chunk and style of a packet."""
    return [(packet.first_chunk + index, style) for index in range(len(packet.chunks)) for style in campaign.styles]


def get_missing_keys(packet: Packet, campaign: Campaign) -> list[OutputKey]:
    """Return the chunks and styles without an accepted text."""
    if packet.missing is None:
        return get_output_keys(packet, campaign)
    return [(chunk, style) for chunk, style, _ in packet.missing]


def get_source_text(packet: Packet, chunk: int) -> str:
    text: str = packet.chunks[chunk - packet.first_chunk]
    return text


def compute_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def build_chunks(packet: Packet, campaign: Campaign, purpose: str) -> tuple[protocol.Chunk, ...]:
    """Return the chunks to rephrase: the missing outputs for work, all outputs for a comparison."""
    keys: Iterable[OutputKey] = (get_missing_keys if purpose == Assignment.Purpose.WORK else get_output_keys)(
        packet, campaign
    )
    styles: dict[int, list[str]] = {}
    for chunk, style in keys:
        styles.setdefault(chunk, []).append(style)
    texts = {index: get_source_text(packet, index) for index in sorted(styles)}
    return tuple(
        protocol.Chunk(index=index, text=text, sha256=compute_sha256(text), styles=tuple(styles[index]))  # type: ignore[arg-type]
        for index, text in texts.items()
    )


def build_packet(packet: Packet, campaign: Campaign, purpose: str) -> protocol.Packet:
    return protocol.Packet(packet=packet.pk, document=packet.document, chunks=build_chunks(packet, campaign, purpose))


def build_order(campaign: Campaign) -> protocol.RephraseOrder:
    """Return the order of a rephrase job; the same for all sessions of a campaign."""
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
