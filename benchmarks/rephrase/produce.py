"""Measures the producer with all filters, on Gutenberg if present (DAILYTRAIN_DATA), and the share of each filter."""

from __future__ import annotations

import argparse
import cProfile
import json
import lzma
import os
import pstats
import time
from pathlib import Path

import django

django.setup()

from django.conf import settings  # noqa: E402

from benchmarks.rephrase import texts  # noqa: E402
from scheduler.campaigns import producer, transitions  # noqa: E402
from scheduler.campaigns.models import Campaign  # noqa: E402

BOOKS = Path(os.environ.get("DAILYTRAIN_DATA", "../shared/data")) / "text" / "gutenberg" / "validation.jsonl.xz"
CHARACTERS = 3000
"""Length of a document, about that of a page of C4."""
PARTS = {
    "language": "classify_language",
    "paragraphs": "hash_paragraph",
    "quality": "get_bucket",
    "chunks": "split_into_chunks",
    "inserts": "bulk_create",
    "paragraph look-ups": "find_seen_digests",
}


def load_documents(count: int) -> list[str]:
    if not BOOKS.exists():
        return [texts.build_source(n).replace(texts.NUMBER, str(n)) for n in range(count)]
    with lzma.open(BOOKS, "rt") as file:
        books = [json.loads(line)["text"] for line in file]
    pieces = (text[at : at + CHARACTERS] for text in books for at in range(0, len(text), CHARACTERS))
    return [piece for piece, _ in zip(pieces, range(count), strict=False)]


def create_campaign(slug: str, found: list[str]) -> Campaign:
    folder = Path(settings.REPHRASE_FILES)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{slug}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in found))
    campaign = Campaign.objects.create(
        slug=slug,
        name=slug,
        dataset=f"{slug}.jsonl",
        low_mark=10**6,
        high_mark=10**6,
        quality_buckets=["head", "middle"],
    )
    transitions.start_campaign(campaign, "bench")
    producer.pin_files(campaign)
    producer.get_quality_model(campaign)
    return campaign


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, required=True)
    found = load_documents(parser.parse_args().documents)
    first = create_campaign("produced", found)
    began, used = time.perf_counter(), time.process_time()
    packets = producer.produce_campaign(first.pk)
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    second, profile = create_campaign("profiled", found), cProfile.Profile()
    profile.runcall(producer.produce_campaign, second.pk)
    size = sum(len(text.encode()) for text in found)
    result = {
        "documents_per_second": len(found) / wall,
        "megabytes_per_second": size / wall / 1e6,
        "cpu_ms": 1000 * cpu / len(found),
        "packets": packets,
        "parts": compute_shares(pstats.Stats(profile)),
    }
    print(json.dumps(result))  # noqa: T201


def compute_shares(stats: pstats.Stats) -> dict[str, str]:
    """Return the share of each filter. The profiler overstates Python code."""
    rows = stats.get_stats_profile().func_profiles
    return {title: f"{rows[name].cumtime / stats.total_tt:.0%}" for title, name in PARTS.items() if name in rows}  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
