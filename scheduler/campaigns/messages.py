"""Builds protocol messages from packets and campaigns."""

from __future__ import annotations

import hashlib

from scheduler.campaigns.models import Assignment, Campaign, Packet
from trainer import protocol


def compute_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def build_chunks(packet: Packet, campaign: Campaign, purpose: str) -> tuple[protocol.Chunk, ...]:
    """Return the chunks to rephrase: the missing outputs for work, all outputs for a comparison."""
    list_outputs = packet.list_missing_outputs if purpose == Assignment.Purpose.WORK else packet.list_outputs
    styles: dict[int, list[str]] = {}
    for chunk, style in list_outputs(campaign.styles):
        styles.setdefault(chunk, []).append(style)
    texts = {index: packet.get_source_text(index) for index in sorted(styles)}
    return tuple(
        protocol.Chunk(index=index, text=text, sha256=compute_sha256(text), styles=tuple(styles[index]))  # type: ignore[arg-type]
        for index, text in texts.items()
    )


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
        speculative_tokens=campaign.speculative_tokens,
        needs_gigabytes=campaign.needs_gigabytes or None,
    )
