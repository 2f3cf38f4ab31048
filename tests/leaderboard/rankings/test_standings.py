"""Standings: all seeds count, ties share a rank, and unreliable runs are left out with a reason."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.models import Entry, Run, Track
from leaderboard.rankings import explanations
from leaderboard.rankings.eligible_runs import (
    NO_GRAPH,
    PASSES_DIFFER,
    READS_AHEAD,
    ScoredRun,
    select_eligible_runs,
    void_other_node_classes,
)
from leaderboard.rankings.standings import compute_standings
from leaderboard.rankings.standings_store import load_standings
from tests.support import boards, scene
from tests.support.graph_jobs import store_graph
from trainer.scoring.multiplier import Axis, EntryMultiplier, MultiplierVerdict

pytestmark = pytest.mark.django_db


def get_estimate(track: Track, entry: Entry, axis: Axis = "flops") -> EntryMultiplier:
    row = compute_standings(track, axis).get_row(entry.pk)
    assert row.estimate
    return row.estimate


def test_estimate_of_all_seeds_contains_true_multiplier() -> None:
    track, entries = boards.create_board()
    better = get_estimate(track, entries["Better"])
    assert better.low is not None
    assert better.high is not None
    assert 1 < better.low < 1.2 < better.high
    assert (better.runs, better.verdict, better.rank) == (3, MultiplierVerdict.BETTER, 1)
    assert get_estimate(track, entries["Worse"]).verdict is MultiplierVerdict.WORSE
    table = compute_standings(track)
    ranks = [(row.latest.title, row.estimate.rank if row.estimate else None) for row in table.rows]
    assert ranks[0] == ("Better", 1)
    assert {ranks[1], ranks[2]} == {("main, 3 March", 2), ("Level", 2)}, "entries that tie share a rank"
    assert ranks[3] == ("Worse", 4)
    assert table.full == 1e13
    assert compute_standings(track, "seconds").full == pytest.approx(boards.SECONDS, rel=0.01)


def test_standings_have_one_row_per_entry_without_ladder_rungs() -> None:
    track, entries = boards.create_board()
    table = compute_standings(track)
    assert len(table.rows) == 4
    baseline = table.get_row(entries["baseline"].pk)
    assert baseline.is_baseline
    assert {run.budget for run in baseline.runs} == {"1e13flops"}
    assert len(table.ladder_runs) == table.count_rung_runs() == 15
    assert load_standings(track).rungs_done == load_standings(track).rungs_wanted == 15


def test_disputed_and_provisional_runs_are_left_out_with_reason() -> None:
    track, entries = boards.create_board()
    disputed = boards.create_scored_run(entries["Better"], 9.0, seed=900, trust=Run.Trust.DISPUTED)
    unknown = boards.create_scored_run(scene.create_entry(track, "New", sha="e" * 40), 9.0, trust=Run.Trust.PROVISIONAL)
    table = compute_standings(track)
    assert {(run.run, reason) for run, reason in table.left_out} == {
        (disputed.pk, "It is disputed."),
        (unknown.pk, "Nothing vouches for its node yet."),
    }
    assert get_estimate(track, entries["Better"]).runs == 3
    stored = load_standings(track)
    row = stored.get_row(unknown.entry_id)
    assert row.estimate is None
    assert explanations.describe_verdict(row, stored) == "provisional: not compared"


def test_run_without_a_graph_does_not_rank_on_a_traced_track() -> None:
    track, entries = boards.create_board()
    for entry in entries.values():
        if entry.title != "Level":
            entry.runs.update(graph=store_graph(entry))
    Track.objects.update(is_traced=True)
    track.refresh_from_db()
    (python_run,) = entries["Level"].runs.all()
    table = compute_standings(track)
    assert [(run.run, reason) for run, reason in table.left_out] == [(python_run.pk, NO_GRAPH)]
    assert get_estimate(track, entries["Better"]).verdict is MultiplierVerdict.BETTER
    stored = load_standings(track)
    row = stored.get_row(entries["Level"].pk)
    assert (row.estimate, row.rank, explanations.describe_verdict(row, stored)) == (None, None, "not compared")
    assert explanations.describe_standing(row, stored).endswith(f"not compared: {NO_GRAPH}")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"checks": {"look_ahead": {"is_beyond_rounding": True}}}, READS_AHEAD), ({"passes_differ": True}, PASSES_DIFFER)],
)
def test_entry_with_one_run_that_fails_a_check_does_not_rank(fields: dict[str, Any], reason: str) -> None:
    track, entries = boards.create_board()
    failing = entries["Better"].runs.earliest("pk")
    Run.objects.filter(pk=failing.pk).update(**fields)
    table = compute_standings(track)
    own = {run.pk for run in entries["Better"].runs.all()}
    assert {(run.run, why) for run, why in table.left_out} == {(pk, reason) for pk in own}
    row = table.get_row(entries["Better"].pk)
    assert (row.estimate, row.left_out) == (None, reason)
    assert failing in Run.objects.without_rank()


def test_interval_has_the_standard_error_of_the_look_ahead_correction() -> None:
    track, entries = boards.create_board()
    plain = get_estimate(track, entries["Better"])
    look_ahead = {"is_beyond_rounding": False, "stderr_bits_per_byte": 0.03}
    entries["Better"].runs.update(checks={"look_ahead": look_ahead})
    wide = get_estimate(track, entries["Better"])
    assert wide.cm == plain.cm
    assert (wide.low or 9) < 1 < (plain.low or 0)


def test_estimate_of_confirmed_entry_uses_confirmation_runs_only() -> None:
    track, entries = boards.create_board()
    entry = entries["Better"]
    for seed in range(500, 500 + track.confirmations - 1):
        boards.create_scored_run(entry, 1.1, seed=seed, purpose=Run.Purpose.CONFIRMATION)
    assert get_estimate(track, entry).runs == 3 + track.confirmations - 1
    boards.create_scored_run(entry, 1.1, seed=600, purpose=Run.Purpose.CONFIRMATION)
    cm = get_estimate(track, entry).cm
    assert get_estimate(track, entry).runs == track.confirmations
    assert cm == pytest.approx(1.1, abs=0.05)


def test_void_seconds_do_not_affect_the_flops_axis() -> None:
    track, entries = boards.create_board()
    Run.objects.filter(entry=entries["Worse"]).update(seconds_void="Its node ran at 83.1% of its usual speed.")
    assert get_estimate(track, entries["Worse"]).verdict is MultiplierVerdict.WORSE
    table = load_standings(track, "seconds")
    row = table.get_row(entries["Worse"].pk)
    assert row.estimate.verdict is MultiplierVerdict.VOID
    assert explanations.describe_verdict(row, table) == "time voided: Its node ran at 83.1% of its usual speed."


def test_ladder_description_names_missing_runs() -> None:
    track, baseline = boards.create_ladder_track()
    table = load_standings(track)
    assert "The baseline has not arrived yet" in explanations.describe_ladder(table)
    boards.create_scored_run(baseline, seed=7, purpose=Run.Purpose.NIGHTLY)
    table = load_standings(track)
    assert "compute only. The baseline’s ladder has 1 of 15 runs." in explanations.describe_ladder(table)
    assert explanations.describe_verdict(table.rows.get(), table) == ""


def test_standings_without_baseline_are_ordered_by_loss() -> None:
    track = scene.create_track()
    worse = boards.create_scored_run(scene.create_entry(track, "Worse"), bits_per_byte=2.5)
    best = boards.create_scored_run(scene.create_entry(track, "Best", sha="b" * 40), bits_per_byte=2.1)
    table = compute_standings(track)
    assert [row.entry for row in table.rows] == [best.entry_id, worse.entry_id]
    assert table.comparison is None
    assert "no baseline yet" in table.problem


# --- descriptions ----------------------------------------------------------------------------------------------------


def describe_row(track: Track, entry: Entry) -> tuple[str, str, str]:
    table = load_standings(track)
    row = table.get_row(entry.pk)
    assert row
    texts = (
        explanations.describe_verdict(row, table),
        explanations.describe_standing(row, table),
        explanations.suggest_next_step(row, table),
    )
    note, standing, step = (text.replace("\xa0", " ") for text in texts)
    return note, standing, step


def test_row_description_has_certainty_and_next_step() -> None:
    track, entries = boards.create_board()
    note, standing, step = describe_row(track, entries["Level"])
    assert note.startswith("provisional, needs ")
    assert note.endswith(" to resolve")
    assert standing.startswith("Provisional multiplier 1.0")
    assert " at 1.0 × 10¹³ FLOPs: needs " in standing
    assert step == "The track gives every entry 3 runs. 2 more come by themselves while nodes are free."

    note, standing, step = describe_row(track, entries["Better"])
    assert note == "better than the baseline"
    assert standing.startswith("Multiplier 1.")
    assert "the baseline would need" in standing
    assert "more compute to get as far." in standing
    assert "it may be a record" in step


def test_row_description_names_seeds_that_maintainer_can_queue() -> None:
    track, entries = boards.create_board()
    for seed in (200, 201):
        boards.create_scored_run(entries["Level"], bits_per_byte=boards.compute_loss(1.032), seed=seed)
    note, _, step = describe_row(track, entries["Level"])
    assert re.fullmatch(r"provisional, needs \d+ more seeds? to resolve", note)
    assert re.fullmatch(r"\d+ more seeds? of it would settle it: a maintainer queues \w+ in the admin\.", step)


@pytest.mark.parametrize(
    ("low", "cm", "high", "expected"),
    [
        (1.009, 1.031, 1.0535, "± 2.2 %"),
        (0.9, 1.0, 1.1111, "± 11 %"),
        (0.5, 0.71, 0.97, "0.500 to 0.970"),
        (None, 1.0, None, ""),
    ],
)
def test_narrow_interval_is_formatted_as_percent(
    low: float | None, cm: float, high: float | None, expected: str
) -> None:
    multiplier = EntryMultiplier(entry="x", cm=cm, low=low, high=high, verdict=MultiplierVerdict.TIED)
    assert explanations.format_interval(multiplier).replace("\xa0", " ") == expected


# --- eligible runs ---------------------------------------------------------------------------------------------------


def build_scored_run(run: int, entry: int, **fields: object) -> ScoredRun:
    values: dict[str, object] = {
        **dict.fromkeys(("seconds_void", "title", "architecture", "author", "kind", "sha", "repository"), ""),
        **dict.fromkeys(("stderr", "parameters", "finished_at"), None),
        "run": run,
        "entry": entry,
        "purpose": "entry",
        "seed": run,
        "budget": "1s",
        "bits_per_byte": 2.0,
        "flops": 1.0,
        "seconds": 1.0,
        "node_class": "a",
        "trust": "scored",
    }
    return ScoredRun(**{**values, **fields})  # type: ignore[arg-type]


SCORED_RUNS = st.lists(
    st.builds(
        lambda entry, purpose, trust, seconds, machine, void: build_scored_run(
            0, entry, purpose=purpose, trust=trust, seconds=seconds, node_class=machine, seconds_void=void
        ),
        st.integers(1, 4),
        st.sampled_from(Run.Purpose.values),
        st.sampled_from(Run.Trust.values),
        st.sampled_from([None, 0.0, 5.0]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["", "void"]),
    )
)


@given(SCORED_RUNS, st.integers(1, 3))
def test_each_run_is_eligible_or_left_out_with_reason(runs: list[ScoredRun], confirmations: int) -> None:
    counted, left_out = select_eligible_runs(runs, 1, confirmations)
    assert len(counted) + len(left_out) == len(runs)
    assert all(reason for _, reason in left_out)
    assert all(run.seconds is None for run in counted if run.seconds_void)
    assert all(run.flops is None or run.flops > 0 for run in counted)


@given(SCORED_RUNS)
def test_eligible_seconds_are_of_one_node_class(runs: list[ScoredRun]) -> None:
    counted = void_other_node_classes(select_eligible_runs(runs, 1, 3)[0], 1)
    timed = {run.node_class for run in counted if run.seconds is not None}
    if any(run.entry == 1 and run.seconds for run in counted):
        assert len(timed) == 1
    assert len(counted) == len(select_eligible_runs(runs, 1, 3)[0])
