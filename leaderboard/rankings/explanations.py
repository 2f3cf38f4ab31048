"""What a standing says, in words: the same ones on the board, the entry's page and the run's page."""

from __future__ import annotations

import math

from leaderboard.formatting import MISSING, SPACE, budget, share
from leaderboard.models import Run
from leaderboard.rankings.eligible_runs import NOT_RELIED_ON
from leaderboard.rankings.standings import Row, Standings
from trainer.scoring.multiplier import EntryMultiplier, MultiplierVerdict

WIDE = 0.2
"""Beyond 20 % an interval is written as its two ends: around a logarithm's middle they lie far from even."""
ALSO = 3
"""Of an entry's ties, this many are named."""

TRUST = {
    Run.Trust.PROVISIONAL: "Nothing vouches yet for the node that trained it. It is shown and not compared.",
    Run.Trust.SCORED: "A trusted node scored it on text that the model has not seen, and its training counts.",
    Run.Trust.REPLICATED: "Fresh seeds, drawn by the server, on trusted nodes unrelated to it agree with it.",
    Run.Trust.RECORD: "Its confirmation runs alone are clearly beyond the baseline and the record before.",
    Run.Trust.DISPUTED: "A replay or the confirmation contradicts it. Not compared until a maintainer has looked.",
}
"""What the badges mean; `leaderboard.rankings.trust` has the rules."""

OF_THE_LADDER = (
    MultiplierVerdict.ONE_RUNG,
    MultiplierVerdict.NOT_FALLING,
    MultiplierVerdict.NO_REPEATS,
    MultiplierVerdict.NO_NOISE,
)
"""What is wrong with the ladder itself is said once above the table, not in every row."""


def multiplier(estimate: EntryMultiplier | None) -> str:
    """1.031"""
    return MISSING if estimate is None or estimate.cm is None else f"{estimate.cm:.3f}"


def interval(estimate: EntryMultiplier | None) -> str:
    """± 2.2 %, or 0.71 to 0.97 where that is wide; empty where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    half = math.sqrt(estimate.high / estimate.low) - 1
    return f"±{SPACE}{per_cent(half)}" if half <= WIDE else ends(estimate)


def per_cent(part: float) -> str:
    """0.0224 is 2.2 %, 0.159 is 16 %."""
    return f"{part * 100:.{1 if part < 0.0995 else 0}f}{SPACE}%"


def ends(estimate: EntryMultiplier | None) -> str:
    """1.009 to 1.054"""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:.3f}{SPACE}to{SPACE}{estimate.high:.3f}"


def scale(standings: Standings) -> str:
    """1.0 × 10¹³ FLOPs: where the multipliers were measured. Gains shrink with scale."""
    return budget(standings.budget)


def seeds(count: int) -> str:
    return f"{count} more seed{'' if count == 1 else 's'}"


def note(row: Row, standings: Standings) -> str:
    """Return how firm a row's number is, in a few words."""
    estimate = row.estimate
    if row.trust in NOT_RELIED_ON:
        return f"{row.trust.label.lower()}: not compared"
    if estimate is None or estimate.verdict in OF_THE_LADDER:
        return ""
    if estimate.verdict is MultiplierVerdict.VOID and row.voided:
        return f"time voided: {row.voided}"
    if estimate.verdict is MultiplierVerdict.BASELINE or not estimate.verdict.is_resolved:
        return str(estimate.verdict)
    if estimate.verdict is MultiplierVerdict.TIED:
        return f"provisional, {resolution(estimate)}"
    if names := tied_names(estimate, standings):
        return f"{estimate.verdict}; tied with {names}"
    return str(estimate.verdict)


def brief(row: Row, standings: Standings) -> str:
    """Return the note as a table has room for it: ties are counted, and what the number itself says is left out."""
    estimate = row.estimate
    compared = estimate is not None and row.trust not in NOT_RELIED_ON and estimate.verdict.is_resolved
    if not compared or estimate is None:
        return note(row, standings)
    if estimate.verdict is MultiplierVerdict.TIED:
        return "level" if estimate.seeds_needed is None else f"level so far, {seeds(estimate.seeds_needed)}"
    baseline = standings.board.baseline if standings.board else ""
    others = sum(name != baseline for name in estimate.tied_with)
    return f"tied with {others} other{'' if others == 1 else 's'}" if others and not row.is_baseline else ""


def resolution(estimate: EntryMultiplier) -> str:
    if estimate.seeds_needed is None:
        return "tied with the baseline; more seeds will not settle it"
    return f"needs {seeds(estimate.seeds_needed)} to resolve"


def tied_names(estimate: EntryMultiplier, standings: Standings) -> str:
    """Return the titles of those it cannot be told from, the baseline aside."""
    baseline = standings.board.baseline if standings.board else ""
    names = [name for name in estimate.tied_with if name != baseline]
    more = f" and {len(names) - ALSO} more" if len(names) > ALSO else ""
    return ", ".join(standings.title(name) for name in names[:ALSO]) + more


def ladder_state(standings: Standings) -> str:
    """Return what there is to know of the ladder before its multipliers are read, in a sentence or two."""
    if standings.problem:
        return f"{standings.problem} {fills(standings)}".strip()
    assert standings.board is not None
    verdict = standings.board[standings.board.baseline].verdict
    said = f"{capital(str(verdict))}. " if verdict in OF_THE_LADDER else ""
    return f"{said}{fills(standings)}".strip()


def fills(standings: Standings) -> str:
    if not standings.rungs:
        return "This track has no ladder: a maintainer gives it one in the admin."
    if standings.done >= standings.wanted:
        return ""
    return (
        f"The baseline’s ladder has {standings.done} of {standings.wanted} runs. It fills by itself while nodes are "
        "free, and makes the intervals narrower."
    )


def standing(row: Row, standings: Standings) -> str:
    """Return one sentence: the multiplier, what it means, and how sure it is."""
    estimate = row.estimate
    if row.trust in NOT_RELIED_ON:
        return f"{row.bits_per_byte:.4f} bits per byte, not compared: {TRUST[row.trust]}"
    if estimate is None:
        return f"{row.bits_per_byte:.4f} bits per byte. {standings.problem}"
    where = f"at {scale(standings)}"
    if row.is_baseline:
        return f"The baseline {where}: every multiplier is read off its {len(standings.ladder)} runs."
    if estimate.cm is None or not estimate.verdict.is_resolved:
        number = "" if estimate.cm is None else f"Indicative multiplier {multiplier(estimate)} {where}. "
        return f"{number}{capital(str(estimate.verdict))}."
    number = f"multiplier {multiplier(estimate)} {interval(estimate)} {where}"
    if estimate.verdict is MultiplierVerdict.TIED:
        return f"Provisional {number}: {resolution(estimate)}."
    return f"{capital(number)}: {meaning(estimate)}."


def meaning(estimate: EntryMultiplier) -> str:
    """the baseline would need 3.1 % more compute to get as far"""
    assert estimate.cm is not None
    more = "more" if estimate.cm > 1 else "less"
    return f"the baseline would need {per_cent(abs(estimate.cm - 1))} {more} compute to get as far"


def gain(row: Row) -> str:
    """The baseline would need 18.7 % more compute to get as far, give or take the interval."""
    return "" if row.estimate is None or row.estimate.cm is None else f"{capital(meaning(row.estimate))}."


def next_step(row: Row, standings: Standings) -> str:
    """Return what would make the row firmer, and who can do it; empty where nothing is open."""
    estimate = row.estimate
    if row.trust in NOT_RELIED_ON:
        return "A stretch of it is trained again elsewhere, or a maintainer looks into it."
    if not standings.rungs or standings.done < standings.wanted:
        return fills(standings)
    if estimate is None or row.is_baseline:
        return ""
    if len(row.runs) < standings.seeds:
        more = standings.seeds - len(row.runs)
        return f"The track gives every entry {standings.seeds} runs. {further(more)} while nodes are free."
    if estimate.seeds_needed:
        what = "of it " if estimate.verdict is MultiplierVerdict.TIED else "of it and of its nearest tie "
        them = "it" if estimate.seeds_needed == 1 else "them"
        return (
            f"{capital(seeds(estimate.seeds_needed))} {what}would settle it: a maintainer queues {them} in the admin."
        )
    if estimate.extrapolated:
        return "It is read off beyond the ladder: a larger rung would make it firm."
    if estimate.verdict is MultiplierVerdict.BETTER and row.trust is Run.Trust.SCORED:
        return "Confirmed by another seed on an unrelated, trusted node it may be a record."
    return ""


def further(more: int) -> str:
    return "One more comes by itself" if more == 1 else f"{more} more come by themselves"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def part_played(run: Run) -> str:
    """baseline, 1/4 of the budget, seed 2: what a run of the ladder is; monthly train; empty for other runs."""
    if run.purpose == Run.Purpose.MONTHLY:
        return f"monthly train, {share(run.part)}"
    if run.purpose != Run.Purpose.LADDER:
        return ""
    return f"baseline, {share(run.part)}, seed {run.seed}"
