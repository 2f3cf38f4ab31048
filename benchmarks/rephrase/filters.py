"""Compares a campaign's filters with datatrove's: `python -m benchmarks.rephrase.filters --json`.

Needs `pip install datatrove==0.9.0 spacy tldextract` in an environment of its own, and the folder of `DAILYTRAIN_DATA`.
Reports, by kind of document, the share that each filter keeps; agreement with ours on all documents; documents per CPU
second; and the same for checks of repetition in outputs. Results: `benchmarks/results/filters.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.rephrase.filter_texts import build_outputs, read_documents

OUTPUTS = 60
"""Prose passages of which outputs are made."""
Filter = Callable[[Sequence[str]], list[bool]]
"""Returns for each document of a source whether it is kept."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rephrase.filters", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("DAILYTRAIN_DATA", "../shared/data")))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print JSON (always)")
    options = parser.parse_args(argv)
    kinds = read_documents(options.data)
    weights: dict[str, Any] = {}
    ours = measure_weight("ours", build_our_filters, weights)
    repetition = build_our_repetition_checks()
    theirs = measure_weight("datatrove", build_datatrove_filters, weights)
    repetition["GopherRepetitionFilter"] = theirs["GopherRepetitionFilter"]
    documents = [document for texts in kinds.values() for document in texts]
    outputs = build_outputs((kinds["web"] + kinds["books"])[:OUTPUTS])
    decisions, speeds = apply_filters(documents, ours | theirs, options.rounds)
    all_outputs = [output for texts in outputs.values() for output in texts]
    accepted_outputs, output_speeds = apply_filters(all_outputs, repetition, options.rounds)
    result = {
        "documents": {kind: len(texts) for kind, texts in kinds.items()},
        "mean_characters": round(sum(map(len, documents)) / len(documents)),
        "kept": {name: split_by_kind(kept, kinds) for name, kept in decisions.items()},
        "agreement": {mine: {other: compare(decisions[mine], decisions[other]) for other in theirs} for mine in ours},
        "documents_per_cpu_second": speeds,
        "outputs_rejected": {
            name: {kind: round(1 - kept, 3) for kind, kept in split_by_kind(accepted, outputs).items()}
            for name, accepted in accepted_outputs.items()
        },
        "outputs_per_cpu_second": output_speeds,
        "weight": weights,
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 0


def measure_weight(name: str, build: Callable[[], dict[str, Filter]], weights: dict[str, Any]) -> dict[str, Filter]:
    """Return the filters; store CPU seconds and memory of importing them and of a first document."""
    process, started = psutil.Process(), time.process_time()
    before = process.memory_info().rss
    filters = build()
    for keep in filters.values():
        keep(["The first document has a few words. It is long enough to be read. " * 10])
    mebibytes = (process.memory_info().rss - before) / 2**20
    weights[name] = {"cpu_seconds": round(time.process_time() - started, 2), "mebibytes": round(mebibytes)}
    return filters


def build_our_filters() -> dict[str, Filter]:
    """Return a campaign's filters as set by default, and with the quality buckets head and middle."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dailytrain.settings")
    import django

    django.setup()
    from scheduler.campaigns import quality, source_filters
    from scheduler.campaigns.models import Campaign
    from scheduler.campaigns.sources import SourceRow

    def select_texts(texts: Sequence[str], campaign: Campaign) -> list[bool]:
        found = [source_filters.build_document(SourceRow(0, row, "", text), campaign) for row, text in enumerate(texts)]
        documents = [document for document in found if isinstance(document, source_filters.Document)]
        model = None
        if campaign.quality_buckets:
            sample = [document.text[: source_filters.SAMPLE_CHARACTERS] for document in documents]
            model = quality.train_quality_model(sample[: quality.SAMPLE_DOCUMENTS])
        dropped: Counter[str] = Counter()
        hashed = [(document, source_filters.hash_paragraphs(document.text)) for document in documents]
        unique = source_filters.drop_repeated_paragraphs(hashed, set(), dropped)
        rows = {document.row.row for document in source_filters.select_documents(unique, campaign, model, dropped)}
        return [row in rows for row in range(len(texts))]

    default = Campaign(language="en")
    buckets = Campaign(language="en", quality_buckets=["head", "middle"])
    return {
        "ours": lambda texts: select_texts(texts, default),
        "ours, head and middle": lambda texts: select_texts(texts, buckets),
    }


def build_our_repetition_checks() -> dict[str, Filter]:
    """Return the check by compressed size alone, and with the measure of loops."""
    from trainer.rephrase.checks import MAX_LOOPED
    from trainer.rephrase.checks.similarity import measure_repetition
    from trainer.rephrase.checks.text import AnalyzedText
    from trainer.rephrase.checks.thresholds import DEFAULT_THRESHOLDS

    threshold = DEFAULT_THRESHOLDS["medium"].repetition

    def is_accepted(text: str) -> bool:
        return measure_repetition(text) > threshold and AnalyzedText(text).loop_share <= MAX_LOOPED

    return {
        "compressed size": lambda texts: [measure_repetition(text) > threshold for text in texts],
        "compressed size and loops": lambda texts: [is_accepted(text) for text in texts],
    }


def build_datatrove_filters() -> dict[str, Filter]:
    """Return datatrove's filters with their defaults, and all four, with FineWeb's option for C4's."""
    from datatrove.data import Document
    from datatrove.pipeline import filters

    def run_chain(texts: Sequence[str], *chain: Any) -> list[bool]:
        return [
            all(one.filter(document) is True for one in chain)
            for document in (Document(text=text, id=str(row)) for row, text in enumerate(texts))
        ]

    gopher, repetition = filters.GopherQualityFilter(), filters.GopherRepetitionFilter()
    c4, fineweb = filters.C4QualityFilter(), filters.FineWebQualityFilter()
    lenient_c4 = filters.C4QualityFilter(filter_no_terminal_punct=False)
    return {
        "GopherQualityFilter": lambda texts: run_chain(texts, gopher),
        "GopherRepetitionFilter": lambda texts: run_chain(texts, repetition),
        "C4QualityFilter": lambda texts: run_chain(texts, c4),
        "FineWebQualityFilter": lambda texts: run_chain(texts, fineweb),
        "all four": lambda texts: run_chain(texts, repetition, gopher, lenient_c4, fineweb),
    }


def share(kept: Sequence[bool]) -> float:
    return sum(kept) / len(kept)


def split_by_kind(kept: Sequence[bool], kinds: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the share of each kind that is kept."""
    shares, start = {}, 0
    for kind, texts in kinds.items():
        shares[kind] = round(share(kept[start : start + len(texts)]), 3)
        start += len(texts)
    return shares


def compare(ours: Sequence[bool], theirs: Sequence[bool]) -> dict[str, float]:
    """Return the share of documents with the same decision, and Cohen's kappa (1960)."""
    same = share([a == b for a, b in zip(ours, theirs, strict=True)])
    first, second = share(ours), share(theirs)
    chance = first * second + (1 - first) * (1 - second)
    return {"same": round(same, 3), "kappa": round((same - chance) / (1 - chance), 2) if chance < 1 else 1.0}


def apply_filters(
    documents: Sequence[str], filters: Mapping[str, Filter], rounds: int
) -> tuple[dict[str, list[bool]], dict[str, float]]:
    """Return each filter's decisions, and its documents per second of CPU time in the fastest round of some."""
    decisions, seconds = {}, dict.fromkeys(filters, float("inf"))
    for _ in range(rounds):
        for name, keep in filters.items():
            started = time.process_time()
            decisions[name] = keep(documents)
            seconds[name] = min(seconds[name], time.process_time() - started)
            sys.stderr.write(f"{name}: {seconds[name]:.1f} s\n")
    return decisions, {name: round(len(documents) / least) for name, least in seconds.items()}


if __name__ == "__main__":
    sys.exit(main())
