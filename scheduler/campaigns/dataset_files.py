"""Builds the files of a published dataset beside its shards.

README.md          the dataset card
manifest.json      campaign, model, prompts, counts, and the name, SHA-256, size and rows of every shard
set_aside.jsonl    each chunk and style without a text, with its reasons
data/shard-*.parquet
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.db.models import Count, Sum

from scheduler.campaigns import shards, statistics
from scheduler.campaigns.models import Campaign, Packet, Rephrasing, Shard, Volunteer
from scheduler.markdown import escape_markdown, sanitize_code
from trainer.rephrase import checks, prompts

MANIFEST = "manifest.json"
SET_ASIDE = "set_aside.jsonl"
CARD = "README.md"
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
DROP_REASONS = {
    "short": "too short",
    "language": "in another language",
    "repeated": "repeated",
    "quality": "of another quality bucket",
    "unreadable": "unreadable",
}


def build_text_files(campaign: Campaign, written: Sequence[Shard]) -> dict[str, bytes]:
    """Return card, manifest and list of set-aside chunks for these shards, by path."""
    set_aside = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in iterate_set_aside(campaign))
    manifest = build_manifest(campaign, written, set_aside)
    return {
        CARD: build_card(campaign, manifest).encode(),
        MANIFEST: (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode(),
        SET_ASIDE: set_aside,
    }


def iterate_set_aside(campaign: Campaign) -> Iterator[dict[str, Any]]:
    """Yield each chunk and style that was given up, with its reasons."""
    packets = campaign.packets.filter(state=Packet.State.SET_ASIDE).order_by("pk")
    for packet in packets.iterator(chunk_size=500):
        origin = {"document": packet.document, "row": packet.row}
        for chunk, style, reasons in packet.missing or ():
            yield {**origin, "chunk": chunk, "style": style, "reasons": reasons}


def build_manifest(campaign: Campaign, written: Sequence[Shard], set_aside: bytes) -> dict[str, Any]:
    """Return the manifest, whose hash pins the dataset. Equal rows give an equal manifest."""
    return {
        "format": 1,
        "campaign": campaign.slug,
        "name": campaign.name,
        "address": f"{settings.SITE_URL}{campaign.get_absolute_url()}",
        "state": campaign.state,
        "license": campaign.license,
        "source": get_source_fields(campaign),
        "model": campaign.model,
        "revision": campaign.model_revision,
        "sampling": campaign.sampling,
        "prompt_version": campaign.prompt_version,
        "styles": campaign.styles,
        "language": campaign.language,
        "documents_read": campaign.rows_read,
        "left_out": campaign.dropped_counts,
        "chunks": campaign.chunk_count,
        "rows": sum(shard.rows for shard in written),
        "set_aside": {"rows": set_aside.count(b"\n"), "sha256": hashlib.sha256(set_aside).hexdigest()},
        "shards": [
            {"name": shard.name, "sha256": shard.blob.sha256, "bytes": shard.blob.size, "rows": shard.rows}
            for shard in written
            if shard.blob
        ],
    }


def get_source_fields(campaign: Campaign) -> dict[str, str]:
    if campaign.source == Campaign.Source.HUB:
        return {name: getattr(campaign, name) for name in ("dataset", "config", "split", "revision")}
    return {"files": campaign.dataset}


# --- the card --------------------------------------------------------------------------------------------------------


def build_card(campaign: Campaign, manifest: dict[str, Any]) -> str:
    """Return the dataset card, with the metadata that the Hub and `datasets` read."""
    metadata = {
        "license": campaign.license,
        "language": [campaign.language] if campaign.language else [],
        "pretty_name": campaign.name,
        "task_categories": ["text-generation"],
        "size_categories": [next((name for limit, name in SIZES if manifest["rows"] < limit), "1M<n<10M")],
        "tags": ["synthetic", "rephrased"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
        **({"source_datasets": [campaign.dataset]} if campaign.source == Campaign.Source.HUB else {}),
    }
    front = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in metadata.items())
    parts = [*build_introduction(campaign, manifest), *build_method_section(campaign), *build_acknowledgments(campaign)]
    return f"---\n{front}\n---\n\n" + "\n\n".join(parts)


def build_introduction(campaign: Campaign, manifest: dict[str, Any]) -> Iterator[str]:
    yield f"# {escape_markdown(campaign.name)}"
    if campaign.about:
        yield escape_markdown(campaign.about)
    state = "The dataset is complete." if campaign.state == Campaign.State.DONE else "The dataset is still growing."
    yield (
        f"{manifest['rows']:,} texts: chunks of {format_source_link(campaign)}, rephrased by a language model in "
        f"{len(campaign.styles)} styles. Volunteers of [{escape_markdown(settings.SITE_NAME)}]({manifest['address']}) "
        f"ran the model. {state} {manifest['set_aside']['rows']:,} texts are missing; `{SET_ASIDE}` lists them with "
        "their reasons."
    )
    accepted = Rephrasing.objects.accepted().filter(campaign=campaign).exclude(shard=None)
    counts = dict(accepted.order_by().values_list("style").annotate(Count("pk")))
    styles = (f"| {style} | {counts.get(style, 0):,} |" for style in campaign.styles)
    yield "\n".join(["| style | texts |", "|---|---:|", *styles])
    columns = (f"| `{name}` | {description} |" for name, (_, description) in shards.COLUMNS.items())
    yield "\n".join(["| column | description |", "|---|---|", *columns])


def build_method_section(campaign: Campaign) -> Iterator[str]:
    yield "## Method"
    revision = f" at revision `{sanitize_code(campaign.model_revision)}`" if campaign.model_revision else ""
    yield (
        f"Documents: {format_dropped(campaign)}. The rest was cut at sentence ends into chunks of about "
        f"{campaign.chunk_tokens} tokens. `{sanitize_code(campaign.model)}`{revision} rephrased each chunk with "
        f"{format_sampling(campaign)}. {format_credit(campaign)} The prompts are our own, version "
        f"{campaign.prompt_version}:"
    )
    instructions = ((style, prompts.get_instructions(style, campaign.prompt_version)) for style in campaign.styles)
    yield "\n".join(f"- **{style}**: {' '.join(lines)}" for style, lines in instructions)
    merged = checks.merge_thresholds(campaign.thresholds)
    thresholds = {style: asdict(merged[style]) for style in campaign.styles}
    yield from build_rejections(campaign)
    yield (
        "Every text passed the site's checks (wording, length, language, meaning, copying, repetition, duplicates). "
        "Two volunteers wrote some packets independently, for comparison. All texts of unreliable volunteers were "
        "withdrawn. The texts were not checked for factual accuracy. Thresholds: "
        f"`{json.dumps(thresholds, sort_keys=True)}`."
    )
    yield (
        f"`{MANIFEST}` has the SHA-256 of every file. License: {campaign.license}, which follows the source's. The "
        "model's license may add terms for its outputs."
    )


def build_rejections(campaign: Campaign) -> Iterator[str]:
    """Yield the share of submitted texts that the checks rejected, and a table of the reasons."""
    counts = campaign.contributions.aggregate(accepted=Sum("accepted", default=0), rejected=Sum("rejected", default=0))
    if submitted := counts["accepted"] + counts["rejected"]:
        yield (
            f"The checks rejected {counts['rejected']:,} of {submitted:,} submitted texts "
            f"({counts['rejected'] / submitted:.1%}), each for one or more reasons:"
        )
    if rejections := statistics.list_rejections(campaign):
        rows = (f"| {row['sentence']} | {row['outputs']:,} |" for row in rejections)
        yield "\n".join(["| reason | texts |", "|---|---:|", *rows])


def format_sampling(campaign: Campaign) -> str:
    top_k = f", top_k {campaign.top_k}" if campaign.top_k else ""
    return f"temperature {campaign.temperature:g}, top_p {campaign.top_p:g}{top_k}"


def list_credits(campaign: Campaign) -> list[prompts.Credit]:
    """Return the authors of the campaign's methods."""
    return [credit for credit in prompts.CREDITS if set(credit.styles) & set(campaign.styles)]


def format_credit(campaign: Campaign) -> str:
    sentences = []
    for credit in list_credits(campaign):
        styles = [style for style in campaign.styles if style in credit.styles]
        named = f"{', '.join(styles[:-1])} and {styles[-1]}" if len(styles) > 1 else styles[0]
        verb = "are the styles" if len(styles) > 1 else "is a style"
        sentences.append(f"{named.capitalize()} {verb} of [{credit.title}]({credit.url}) ({credit.authors}).")
    return " ".join(sentences)


def format_dropped(campaign: Campaign) -> str:
    """Return how many documents and paragraphs the filters dropped."""
    counts = campaign.dropped_counts
    dropped = [f"{counts[key]:,} {reason}" for key, reason in DROP_REASONS.items() if counts.get(key)]
    text = f"{campaign.rows_read:,} read, {', '.join(dropped) if dropped else 'none dropped'}"
    return f"{text}; {counts['paragraphs']:,} repeated paragraphs" if counts.get("paragraphs") else text


def build_acknowledgments(campaign: Campaign) -> Iterator[str]:
    """Thank the volunteers: those with an account by name, the others by their number."""
    contributions = campaign.contributions.filter(accepted__gt=0).exclude(volunteer__state=Volunteer.State.BANNED)
    named = contributions.exclude(volunteer__user=None).order_by("-accepted", "volunteer__name")
    thanked = [escape_markdown(name) for name in named.values_list("volunteer__name", flat=True)]
    if anonymous := contributions.filter(volunteer__user=None).count():
        thanked.append(f"{anonymous:,} anonymous volunteer{'s' if anonymous > 1 else ''}")
    if thanked:
        tokens = contributions.aggregate(tokens=Sum("tokens", default=0))["tokens"]
        yield "## Acknowledgments"
        yield f"Thanks to {', '.join(thanked)}, whose machines wrote {tokens:,} tokens.\n"


def format_source_link(campaign: Campaign) -> str:
    if campaign.source != Campaign.Source.HUB:
        return "a collection of texts"
    config = f", {escape_markdown(campaign.config)}" if campaign.config else ""
    url = f"{settings.HUB_ENDPOINT}/datasets/{quote(campaign.dataset)}"
    return f"[{escape_markdown(campaign.dataset)}]({url}){config} (revision `{campaign.revision}`)"
