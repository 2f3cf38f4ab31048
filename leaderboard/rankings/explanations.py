"""Standings in words, for the board, the entry page and the run page."""

from __future__ import annotations

import math

from leaderboard.formatting import MISSING, SPACE, budget, share
from leaderboard.models import Run, Standing, StandingsTable
from leaderboard.rankings.eligible_runs import EXCLUDED_TRUST
from trainer.scoring.multiplier import EntryMultiplier, MultiplierVerdict

MAX_SYMMETRIC_INTERVAL = 0.2
"""Wider intervals are far from symmetric, so they are written as two ends."""

TRUST_MEANINGS = {
    Run.Trust.PROVISIONAL: "Nothing vouches yet for the node that trained it. It is shown and not compared.",
    Run.Trust.SCORED: "A trusted node scored it on text that the model has not seen, and its training counts.",
    Run.Trust.REPLICATED: "Fresh seeds, drawn by the server, on trusted nodes unrelated to it agree with it.",
    Run.Trust.RECORD: "Its confirmation runs alone are clearly beyond the baseline and the record before.",
    Run.Trust.DISPUTED: "A replay or the confirmation contradicts it. Not compared until a maintainer has looked.",
}

LADDER_VERDICTS = (
    MultiplierVerdict.ONE_RUNG,
    MultiplierVerdict.NOT_FALLING,
    MultiplierVerdict.NO_REPEATS,
    MultiplierVerdict.NO_NOISE,
)
"""Problems of the ladder itself are shown once above the table."""


def format_multiplier(estimate: EntryMultiplier | None) -> str:
    """1.031"""
    return MISSING if estimate is None or estimate.cm is None else f"{estimate.cm:.3f}"


def format_interval(estimate: EntryMultiplier | None) -> str:
    """± 2.2 %, or 0.71 to 0.97 if wide; empty without an interval."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    half = math.sqrt(estimate.high / estimate.low) - 1
    return f"±{SPACE}{format_percent(half)}" if half <= MAX_SYMMETRIC_INTERVAL else format_interval_ends(estimate)


def format_percent(part: float) -> str:
    """0.0224 is 2.2 %, 0.159 is 16 %."""
    return f"{part * 100:.{1 if part < 0.0995 else 0}f}{SPACE}%"


def format_interval_ends(estimate: EntryMultiplier | None) -> str:
    """1.009 to 1.054"""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:.3f}{SPACE}to{SPACE}{estimate.high:.3f}"


def format_more_seeds(count: int) -> str:
    return f"{count} more seed{'' if count == 1 else 's'}"


def describe_verdict(row: Standing, table: StandingsTable) -> str:
    estimate = row.estimate
    if row.trust in EXCLUDED_TRUST:
        return f"{row.get_trust_display().lower()}: not compared"
    if row.left_out:
        return "not compared"
    if estimate is None or estimate.verdict in LADDER_VERDICTS:
        return ""
    if estimate.verdict is MultiplierVerdict.VOID and row.seconds_void:
        return f"time voided: {row.seconds_void}"
    if estimate.verdict is MultiplierVerdict.BASELINE or not estimate.verdict.is_resolved:
        return str(estimate.verdict)
    if estimate.verdict is MultiplierVerdict.TIED:
        return f"provisional, {describe_resolution(estimate)}"
    if row.tie_titles:
        return f"{estimate.verdict}; tied with {list_ties(row)}"
    return str(estimate.verdict)


def describe_verdict_briefly(row: Standing, table: StandingsTable) -> str:
    """Return the verdict for a table: ties are counted, and what the number shows is left out."""
    estimate = row.estimate
    compared = estimate is not None and row.trust not in EXCLUDED_TRUST and estimate.verdict.is_resolved
    if not compared or estimate is None:
        return describe_verdict(row, table)
    if estimate.verdict is MultiplierVerdict.TIED:
        needed = "" if estimate.seeds_needed is None else f" yet, {format_more_seeds(estimate.seeds_needed)}"
        return f"no clear difference{needed}"
    if row.is_baseline or not row.tie_count:
        return ""
    return f"tied with {row.tie_count} other{'' if row.tie_count == 1 else 's'}"


def describe_resolution(estimate: EntryMultiplier) -> str:
    if estimate.seeds_needed is None:
        return "tied with the baseline; more seeds will not settle it"
    return f"needs {format_more_seeds(estimate.seeds_needed)} to resolve"


def list_ties(row: Standing) -> str:
    more = row.tie_count - len(row.tie_titles)
    return ", ".join(row.tie_titles) + (f" and {more} more" if more > 0 else "")


def describe_ladder(table: StandingsTable) -> str:
    if table.problem:
        return f"{table.problem} {describe_ladder_progress(table)}".strip()
    verdict = f"{capitalize(table.ladder_verdict)}. " if table.ladder_verdict in LADDER_VERDICTS else ""
    return f"{verdict}{describe_ladder_progress(table)}".strip()


def describe_ladder_progress(table: StandingsTable) -> str:
    if not table.rungs_wanted:
        return "This track has no ladder: a maintainer gives it one in the admin."
    if table.rungs_done >= table.rungs_wanted:
        return ""
    return (
        f"The baseline’s ladder has {table.rungs_done} of {table.rungs_wanted} runs. It fills by itself while nodes "
        "are free, and makes the intervals narrower."
    )


def describe_standing(row: Standing, table: StandingsTable) -> str:
    """Return one sentence: the multiplier, its meaning and its certainty."""
    estimate = row.estimate
    if row.trust in EXCLUDED_TRUST:
        return f"{row.bits_per_byte:.4f} bits per byte, not compared: {TRUST_MEANINGS[Run.Trust(row.trust)]}"
    if row.left_out:
        return f"{row.bits_per_byte:.4f} bits per byte, not compared: {row.left_out}"
    if estimate is None:
        return f"{row.bits_per_byte:.4f} bits per byte. {table.problem}"
    where = f"at {budget(table.budget)}"
    if row.is_baseline:
        return f"The baseline {where}: every multiplier is read off its {table.ladder_runs} runs."
    if estimate.cm is None or not estimate.verdict.is_resolved:
        number = "" if estimate.cm is None else f"Indicative multiplier {format_multiplier(estimate)} {where}. "
        return f"{number}{capitalize(str(estimate.verdict))}."
    number = f"multiplier {format_multiplier(estimate)} {format_interval(estimate)} {where}"
    if estimate.verdict is MultiplierVerdict.TIED:
        return f"Provisional {number}: {describe_resolution(estimate)}."
    return f"{capitalize(number)}: {describe_multiplier(estimate)}."


def describe_multiplier(estimate: EntryMultiplier) -> str:
    """the baseline would need 3.1 % more compute to get as far"""
    assert estimate.cm is not None
    more = "more" if estimate.cm > 1 else "less"
    return f"the baseline would need {format_percent(abs(estimate.cm - 1))} {more} compute to get as far"


def describe_gain(row: Standing) -> str:
    estimate = row.estimate
    return "" if estimate is None or estimate.cm is None else f"{capitalize(describe_multiplier(estimate))}."


def suggest_next_step(row: Standing, table: StandingsTable) -> str:
    """Return what would make the row firmer, and who can do it; empty where nothing is open."""
    estimate = row.estimate
    if row.trust in EXCLUDED_TRUST:
        return "A stretch of it is trained again elsewhere, or a maintainer looks into it."
    if row.left_out:
        return ""
    if not table.rungs_wanted or table.rungs_done < table.rungs_wanted:
        return describe_ladder_progress(table)
    if estimate is None or row.is_baseline:
        return ""
    if row.run_count < table.track.seeds and table.track.stops_early and row.is_undecided:
        return f"Further runs, up to {table.track.seeds} in all, come by themselves while it is undecided."
    if row.run_count < table.track.seeds and not table.track.stops_early:
        more = table.track.seeds - row.run_count
        further = "One more comes by itself" if more == 1 else f"{more} more come by themselves"
        return f"The track gives every entry {table.track.seeds} runs. {further} while nodes are free."
    if estimate.seeds_needed:
        what = "of it " if estimate.verdict is MultiplierVerdict.TIED else "of it and of its nearest tie "
        them = "it" if estimate.seeds_needed == 1 else "them"
        needed = capitalize(format_more_seeds(estimate.seeds_needed))
        return f"{needed} {what}would settle it: a maintainer queues {them} in the admin."
    if estimate.extrapolated:
        return "It is read off beyond the ladder: a larger rung would make it firm."
    if estimate.verdict is MultiplierVerdict.BETTER and row.trust == Run.Trust.SCORED:
        return "Confirmed by another seed on an unrelated, trusted node it may be a record."
    return ""


def capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def summarize_run(run: Run) -> str:
    """gpt, seed 2; of a run with a purpose of its own, the purpose instead."""
    return describe_purpose(run) or f"{run.entry.architecture}, seed {run.seed}"


def describe_purpose(run: Run) -> str:
    """baseline, 1/4 of the budget, seed 2; empty for runs that are neither ladder, monthly nor fine-tune."""
    if run.purpose == Run.Purpose.MONTHLY:
        return f"monthly train, {share(run.part)}"
    if run.purpose == Run.Purpose.FINETUNE:
        return f"fine-tune of run {run.start_run_id}"
    if run.purpose != Run.Purpose.LADDER:
        return ""
    return f"baseline, {share(run.part)}, seed {run.seed}"
