"""What is published of a campaign: its shards, a manifest that names each by its hash, what was set aside, and a card.

README.md          the card
manifest.json      campaign, model, prompts, counts, and name, SHA-256, bytes and rows of every shard
set_aside.jsonl    each chunk and style that has no text, with its reasons
data/shard-*.parquet
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.db.models import Count, F, Sum

from scheduler.campaigns import collation
from scheduler.models import Campaign, Packet, Rephrasing, Shard, Share, Volunteer
from trainer.rephrase import checks, prompts

MANIFEST = "manifest.json"
SET_ASIDE = "set_aside.jsonl"
CARD = "README.md"
MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\`*[]<>|"})
SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def shards(campaign: Campaign) -> list[Shard]:
    """Return the shards whose file is there and up to date, in order."""
    return list(campaign.shards.filter(written=F("version")).exclude(blob=None).select_related("blob"))


def words(campaign: Campaign, written: list[Shard]) -> dict[str, bytes]:
    """Return what goes beside these shards, by path."""
    aside = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in set_aside(campaign))
    told = manifest(campaign, written, aside)
    return {
        CARD: card(campaign, told).encode(),
        MANIFEST: (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode(),
        SET_ASIDE: aside,
    }


def set_aside(campaign: Campaign) -> Iterator[dict[str, Any]]:
    """Yield what will have no text, and why."""
    aside = campaign.packets.filter(state=Packet.State.ASIDE).order_by("pk")
    for packet in aside.iterator(chunk_size=500):
        for chunk, style, reasons in packet.lacking or ():
            yield {
                "document": packet.document,
                "row": packet.row,
                "chunk": chunk,
                "style": style,
                "reasons": reasons,
            }


def manifest(campaign: Campaign, written: list[Shard], aside: bytes) -> dict[str, Any]:
    """Return what pins the dataset. The same rows give the same manifest."""
    return {
        "format": 1,
        "campaign": campaign.slug,
        "name": campaign.name,
        "address": f"{settings.SITE_URL}{campaign.get_absolute_url()}",
        "state": campaign.state,
        "licence": campaign.licence,
        "source": source(campaign),
        "model": campaign.model,
        "revision": campaign.model_revision,
        "sampling": campaign.sampling,
        "prompt_version": campaign.prompt_version,
        "styles": campaign.styles,
        "language": campaign.language,
        "documents_read": campaign.rows_read,
        "left_out": campaign.dropped,
        "chunks": campaign.chunks_made,
        "rows": sum(shard.rows for shard in written),
        "set_aside": {"rows": aside.count(b"\n"), "sha256": hashlib.sha256(aside).hexdigest()},
        "shards": [
            {"name": shard.name, "sha256": shard.blob.sha256, "bytes": shard.blob.size, "rows": shard.rows}
            for shard in written
            if shard.blob
        ],
    }


def source(campaign: Campaign) -> dict[str, Any]:
    if campaign.source == Campaign.Source.HUB:
        told = {"dataset": campaign.dataset, "config": campaign.config, "split": campaign.split}
        return {**told, "revision": campaign.revision}
    return {"files": campaign.dataset}


# --- the card --------------------------------------------------------------------------------------------------------


def card(campaign: Campaign, told: dict[str, Any]) -> str:
    """Return the dataset's card, with the metadata that the Hub and `datasets` read."""
    head = {
        "license": campaign.licence,
        "language": [campaign.language] if campaign.language else [],
        "pretty_name": campaign.name,
        "task_categories": ["text-generation"],
        "size_categories": [next((word for most, word in SIZES if told["rows"] < most), "1M<n<10M")],
        "tags": ["synthetic", "rephrased"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}],
        **({"source_datasets": [campaign.dataset]} if campaign.source == Campaign.Source.HUB else {}),
    }
    front = "\n".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items())
    return f"---\n{front}\n---\n\n" + "\n\n".join([*introduction(campaign, told), *method(campaign), *thanks(campaign)])


def introduction(campaign: Campaign, told: dict[str, Any]) -> Iterator[str]:
    yield f"# {plain(campaign.name)}"
    if campaign.about:
        yield plain(campaign.about)
    state = "It is complete." if campaign.state == Campaign.State.DONE else "It is still growing."
    yield (
        f"{told['rows']:,} texts: chunks of {named_source(campaign)}, each rephrased by a language model in "
        f"{len(campaign.styles)} styles, by volunteers of [{plain(settings.SITE_NAME)}]({told['address']}). {state} "
        f"{told['set_aside']['rows']:,} have no text; `{SET_ASIDE}` lists them, each with its reason."
    )
    by_style = dict(
        Rephrasing.objects.filter(campaign=campaign, state=Rephrasing.State.ACCEPTED)
        .exclude(shard=None)
        .values_list("style")
        .annotate(rows=Count("pk"))
        .order_by()
    )
    yield "\n".join(
        ["| style | texts |", "|---|---:|", *(f"| {s} | {by_style.get(s, 0):,} |" for s in campaign.styles)]
    )
    columns = (f"| `{name}` | {what} |" for name, (_, what) in collation.COLUMNS.items())
    yield "\n".join(["| column | what it is |", "|---|---|", *columns])


def method(campaign: Campaign) -> Iterator[str]:
    yield "## How it was made"
    revision = f" at revision `{plain(campaign.model_revision)}`" if campaign.model_revision else ""
    yield (
        f"Documents were read once, in order; {left_out(campaign)}. What was left was cut at sentence ends into chunks "
        f"of about {campaign.chunk_tokens} tokens. Each was rephrased by `{plain(campaign.model)}`{revision}, with "
        f"temperature {campaign.temperature:g} and top_p {campaign.top_p:g}, after Maini et al. 2024 "
        f"(arXiv 2401.16380), with prompts of our own, version {campaign.prompt_version}:"
    )
    said = (f"- **{s}**: {' '.join(prompts.get_instructions(s, campaign.prompt_version))}" for s in campaign.styles)
    yield "\n".join(said)
    yield (
        "Every text passed the site's checks (wording, length, language, meaning, copying, repetition, duplicates). "
        "Some were written by two volunteers and compared; what a volunteer wrote whose work did not hold up was "
        "withdrawn. "
        "Nobody checked whether each text is true to its source. Thresholds: "
        f"`{json.dumps(thresholds(campaign), sort_keys=True)}`."
    )
    yield f"`{MANIFEST}` has the SHA-256 of every file. Licence: {campaign.licence}."


def thresholds(campaign: Campaign) -> dict[str, dict[str, float]]:
    known = checks.merge_thresholds(campaign.thresholds)
    return {style: asdict(known[style]) for style in campaign.styles}


LEFT_OUT = {
    "short": "were too short",
    "language": "are in another language",
    "repeated": "held nothing new",
    "quality": "are of another bucket of quality",
    "unreadable": "could not be read",
}


def left_out(campaign: Campaign) -> str:
    """Return what the filters did, as the rest of a sentence."""
    said = [f"{campaign.dropped[key]:,} {word}" for key, word in LEFT_OUT.items() if campaign.dropped.get(key)]
    read = f"of {campaign.rows_read:,}, {', '.join(said)}" if said else f"all {campaign.rows_read:,} were taken"
    paragraphs = campaign.dropped.get("paragraphs", 0)
    return read + (f"; {paragraphs:,} paragraphs had come before" if paragraphs else "")


def thanks(campaign: Campaign) -> Iterator[str]:
    """Yield who is thanked: by name who has signed in, the others by their number."""
    wrote = Share.objects.filter(campaign=campaign, accepted__gt=0).exclude(volunteer__state=Volunteer.State.BARRED)
    named = wrote.exclude(volunteer__user=None).order_by("-accepted", "volunteer__name")
    names = [plain(name) for name in named.values_list("volunteer__name", flat=True)]
    others = wrote.filter(volunteer__user=None).count()
    if not names and not others:
        return
    tokens = wrote.aggregate(tokens=Sum("tokens"))["tokens"] or 0
    more = f"{others:,} volunteer{'s' if others != 1 else ''} without a name" if others else ""
    yield "## Thanks"
    everybody = " and ".join(part for part in (", ".join(names), more) if part)
    yield f"To {everybody}, whose machines wrote {tokens:,} tokens.\n"


def named_source(campaign: Campaign) -> str:
    if campaign.source != Campaign.Source.HUB:
        return "a collection of texts"
    config = f", {plain(campaign.config)}" if campaign.config else ""
    name = plain(campaign.dataset)
    return f"[{name}]({settings.HUB_ENDPOINT}/datasets/{name}){config} (revision `{campaign.revision}`)"


def plain(text: str) -> str:
    """Return people's words without what Markdown or HTML would make of them."""
    return " ".join(text.split()).translate(MARKDOWN)
