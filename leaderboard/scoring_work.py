"""The work of scoring a run, by which its time is estimated and limited."""

from __future__ import annotations

from collections.abc import Sequence

from leaderboard.models import Run, Track
from scheduler.matching import MODEL_LABEL, parse_labels
from trainer.accounting.budget import BYTES_PER_TOKEN
from trainer.accounting.peak_flops import list_form_factors
from trainer.accounting.scoring_time import (
    MIN_LIMIT_SECONDS,
    START_SECONDS,
    ScoringWork,
    choose_slowest_scorer,
    compute_pass_flops,
    get_fp32_flops,
)
from trainer.accounting.training_size import DEFAULT_GPU_SEQUENCE_LENGTH
from trainer.scoring.passes import count_suite_passes, count_text_passes


def get_suite(run: Run) -> Sequence[str]:
    """Return the benchmark tasks that a run is scored on: of ladder rungs and trials, the held-out text suffices."""
    return run.track.suite if run.budget == run.track.budget else ()


def compute_scoring_work(run: Run, suite: Sequence[str], test_bytes: int) -> ScoringWork | None:
    """Return the work; None if neither the baseline's size nor a graph of the run is known.

    `test_bytes`: of the stored test split; 0 if it is not stored. An entry may cost more than the baseline.
    """
    track, size, summary = run.track, run.track.size, run.graph.summary if run.graph else {}
    length = track.config.get("train", {}).get("sequence_length", DEFAULT_GPU_SEQUENCE_LENGTH)
    flops = compute_pass_flops(size, length) if size else 0.0
    flops = max(flops, float(summary.get("scoring_flops_per_token", 0)) * length)
    if not flops:
        return None
    tokens = run.season.test_tokens
    if test_bytes:
        tokens = min(tokens, int(test_bytes / BYTES_PER_TOKEN))
    return ScoringWork(flops, count_text_passes(tokens, length), count_suite_passes(suite, track.suite_limit))


def estimate_scoring_times(track: Track, work: ScoringWork | None) -> tuple[float, float]:
    """Return the expected seconds of a score job, on a card as the track asks for, and their limit."""
    if work is None:
        return START_SECONDS, MIN_LIMIT_SECONDS
    needs, named = parse_labels(tuple(track.needs_labels)), find_named_gpus(track.needs_labels)
    if not (named or needs.gpus):
        slowest = card = ""
    else:
        slowest = choose_slowest_scorer(track.get_scoring_memory())
        card = named[0] if named else choose_slowest_scorer(needs.gpu_memory_bytes)
    expected = work.estimate_seconds(card)
    assert expected is not None, "a GPU of the table"
    return expected, work.compute_limit(slowest)


def find_named_gpus(labels: Sequence[str]) -> list[str]:
    """Return the GPUs of the model that a track's labels name, the fastest in fp32 first."""
    names = parse_labels(tuple(labels)).names
    models = [match[2] if (match := MODEL_LABEL.fullmatch(name)) else name for name in names]
    return sorted((gpu for model in models for gpu in list_form_factors(model)), key=get_fp32_flops, reverse=True)
