"""Families of near entries: who is near, who goes first, the pooled estimate, and what the comment shows."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from leaderboard import graphs, tasks
from leaderboard.integrations.github import comment_text, entry_status
from leaderboard.models import Entry, Run, Season, Standing, StandingsTable, TracedGraph, Track
from leaderboard.rankings.standings_store import compute_version
from leaderboard.schedule.track_templates import create_track
from leaderboard.submissions import families, intake
from scheduler.models import Job
from tests.leaderboard.conftest import Repository
from tests.leaderboard.submissions.conftest import decide, propose_entry
from tests.support import boards, scene
from tests.support.graph_jobs import SUMMARY, attach_graph, store_graph
from tests.support.pool import create_job
from tests.support.traced_models import trace
from trainer.graph.canonical import count_patterns

PATTERNS = {f"{number:08x}": 2 for number in range(20)}
RECIPE: dict[str, Any] = {"clip": None, "groups": [{"name": "all", "match": ["*"], "learning_rate": 0.01}]}
BASELINE = {"patterns": PATTERNS, "recipe": RECIPE, "parameters": 100_000}


def profile(patterns: dict[str, int], parameters: int = 100_000, **fields: Any) -> families.Profile:
    summary = {"patterns": patterns, "parameters": parameters, "recipe": RECIPE, **fields}
    return families.build_profile(summary, BASELINE)


def test_graphs_with_the_same_changes_are_near_whatever_their_depth() -> None:
    idea = profile({**PATTERNS, "a" * 8: 4, "b" * 8: 4})
    deeper = profile({**PATTERNS, "a" * 8: 8, "b" * 8: 8}, parameters=200_000)
    other = profile({**PATTERNS, "c" * 8: 4})
    assert families.compute_distance(idea, deeper) == families.PER_DOUBLING < families.NEAR
    assert families.compute_distance(idea, other) == 1, "both are the baseline, but for what they change"
    assert families.compute_distance(idea, profile({**PATTERNS, "a" * 8: 4})) == 0.5


def test_distance_counts_changed_settings_of_the_recipe() -> None:
    group = {**RECIPE["groups"][0], "learning_rate": 0.02}
    faster = profile(PATTERNS, recipe={**RECIPE, "groups": [group]})
    fastest = profile(PATTERNS, recipe={**RECIPE, "groups": [{**group, "learning_rate": 0.04}]})
    clipped = profile(PATTERNS, recipe={**RECIPE, "clip": 1.0})
    assert faster.changes == {"groups.all.learning_rate"}
    assert (families.compute_distance(faster, fastest), families.compute_distance(faster, clipped)) == (0, 1)


def test_graphs_without_counted_changes_are_near_only_if_equal() -> None:
    same = profile(PATTERNS), profile(PATTERNS)
    equal = profile(PATTERNS, canonical_hash="c"), profile({}, canonical_hash="c")
    assert (families.compute_distance(*same), families.compute_distance(*equal)) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other", "is_near"),
    [
        (("smear", {}), ("smear", {"qk_norm": False}), True),
        (("moe", {}), ("moe", {"experts": 4}), True),
        (("gpt", {"memory_rows": 64}), ("gpt", {"memory_rows": 64, "memory_orders": "2"}), True),
        (("smear", {}), ("gpt", {"embedding_smear": False}), False),
        (("smear", {}), ("moe", {}), False),
        (("nanogpt", {}), ("rwkv5", {}), False),
        (("gpt", {"softcap": 0.0}), ("gpt", {"backout": False}), False),
    ],
)
def test_graphs_of_the_library_are_near_if_they_are_of_one_idea(
    one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]], is_near: bool
) -> None:
    baseline, *summaries = (describe(name, **fields) for name, fields in (("gpt", {}), one, other))
    distance = families.compute_distance(*(families.build_profile(summary, baseline) for summary in summaries))
    assert (distance <= families.NEAR) is is_near


@lru_cache
def describe(name: str, **fields: Any) -> dict[str, Any]:
    traced = trace(name, **fields)
    parameters = sum(each.number_of_elements for each in traced.initialization.tensors if each.kind == "parameter")
    return {"patterns": count_patterns(traced), "recipe": traced.recipe["recipe"], "parameters": parameters}


@pytest.fixture
def compared_track(open_track: Track) -> Track:
    """A track whose season has a traced baseline."""
    baseline = scene.create_entry(open_track, "baseline", sha="b" * 40, kind=Entry.Kind.MAIN)
    store_graph(baseline, **BASELINE)
    Season.objects.update(baseline=baseline)
    return Track.objects.select_related("season").get(pk=open_track.pk)


def propose_idea(track: Track, number: int, *added: str, **fields: Any) -> Entry:
    entry = propose_entry(track, number, author=number, **fields)
    baseline = TracedGraph.objects.filter(entry__title="baseline").first()
    summary = {**SUMMARY, **BASELINE, "patterns": {**PATTERNS, **dict.fromkeys(added, 1)}}
    entry.graphs.update(summary=summary, baseline_graph=baseline)
    families.place_entries()
    entry.refresh_from_db()
    return entry


def end_runs(entry: Entry, **fields: Any) -> None:
    entry.runs.update(**{"state": Run.State.FINISHED, "bits_per_byte": 1.0, "budget": entry.track.budget, **fields})


def test_one_of_a_family_goes_first_and_the_others_wait_for_it(compared_track: Track) -> None:
    first = propose_idea(compared_track, 1, "aaaaaaaa", "bbbbbbbb")
    other = propose_idea(compared_track, 2, "cccccccc")
    near = propose_idea(compared_track, 3, "aaaaaaaa", "bbbbbbbb", "dddddddd")
    assert (first.family, other.family, near.family) == (first, other, first)
    assert decide(near) == ("proposed", "family")
    first.refresh_from_db()
    assert (first.state, near.waits_for) == ("approved", first)
    assert not near.needs_person
    end_runs(first)
    assert decide(near) == ("approved", "")
    assert near.waits_for is None


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"state": Run.State.FAILED, "bits_per_byte": None}, "approved"),
        ({"state": Run.State.TRAINING, "bits_per_byte": None}, "proposed"),
        ({"state": Run.State.SCORING, "bits_per_byte": None}, "proposed"),
    ],
)
def test_family_waits_until_its_first_entry_has_ended(
    compared_track: Track, fields: dict[str, Any], state: str
) -> None:
    first, near = (propose_idea(compared_track, number, "aaaaaaaa") for number in (1, 2))
    decide(first)
    end_runs(first, **fields)
    assert decide(near)[0] == state


def test_family_of_which_two_authors_were_stopped_waits_for_a_maintainer(compared_track: Track) -> None:
    first, second, near = (propose_idea(compared_track, number, "aaaaaaaa") for number in (1, 2, 3))
    verdict = {"look_fraction": 0.25, "look_behind": 0.061, "look_error": 0.009, "is_behind": True}
    for entry in (first, second):
        Entry.objects.filter(pk=entry.pk).update(author=f"author-{entry.pk}")
        assert decide(entry) == ("approved", ""), "one author's entry does not hold up others"
        end_runs(entry, state=Run.State.STOPPED, bits_per_byte=None, **verdict)
    assert decide(near) == ("proposed", "behind")
    assert near.waits_for == first
    assert near.needs_person
    status = entry_status.get_entry_status(near, timezone.now())
    assert "stopped at 1/4: 6.1 ± 0.9 % behind." in status.line
    assert "/approve" in status.todo


def test_held_run_of_a_family_lets_the_next_entry_go(compared_track: Track) -> None:
    first, near = (propose_idea(compared_track, number, "aaaaaaaa") for number in (1, 2))
    decide(first)
    assert decide(near) == ("proposed", "family")
    first.runs.update(job=create_job(state=Job.State.HELD), state=Run.State.QUEUED)
    assert decide(near) == ("approved", "")


def test_first_entry_that_needs_a_person_lets_the_next_of_its_family_go(compared_track: Track) -> None:
    held, near = (propose_idea(compared_track, number, "aaaaaaaa") for number in (1, 2))
    Entry.objects.filter(pk=held.pk).update(is_held=True)
    assert decide(near) == ("approved", "")


def test_maintainer_lets_a_waiting_entry_go_on(compared_track: Track) -> None:
    near = [propose_idea(compared_track, number, "aaaaaaaa") for number in (1, 2)][1]
    assert decide(near) == ("proposed", "family")
    intake.approve_entry(near, near.sha, None)
    near.refresh_from_db()
    assert (near.state, near.obstacle, near.waits_for) == ("approved", "", None)


def test_entry_without_compared_baseline_has_no_family(open_track: Track) -> None:
    entry = propose_entry(open_track, 1)
    entry.graphs.update(summary={**SUMMARY, "patterns": PATTERNS})
    tasks.apply_policies()
    entry.refresh_from_db()
    assert (entry.family, entry.state) == (None, "approved")


def test_many_patterns_leave_the_values_of_the_caps(proposed_entry: Entry, track: Track) -> None:
    Season.objects.update(caps={"parameters": 1000}, vocabulary_size=512)
    store_graph(proposed_entry)
    graph = TracedGraph.objects.select_related("entry", "season", "job").get()
    patterns = {f"{number:08x}": 1 for number in range(500)}
    summary = attach_graph(graph.job)
    graphs.store_trace(graph, {"patterns": patterns, **summary}, "")
    graph.refresh_from_db()
    assert "over the season's cap" in graph.problem


# --- the pooled estimate and the pages --------------------------------------------------------------------------------


def build_members(*intervals: tuple[float, float]) -> list[families.Member]:
    table = StandingsTable(noise_freedom=5)
    rows = [
        Standing(table=table, multiplier=math.sqrt(low * high), multiplier_low=low, multiplier_high=high)
        for low, high in intervals
    ]
    return [families.Member(Entry(), None, row) for row in rows]


def test_pooled_estimate_of_equal_members_is_theirs_and_narrower() -> None:
    pooled = families.pool_multipliers(build_members(*[(0.9, 1.1)] * 4))
    assert pooled is not None
    width = math.log(1.1 / 0.9) / 2
    assert pooled["multiplier"] == pytest.approx(math.sqrt(0.99))
    assert math.log(pooled["high"] / pooled["low"]) / 2 == pytest.approx(width / 2), "of four equal errors"
    assert (pooled["entries"], pooled["tau"]) == (4, 0)


def test_pooled_estimate_of_members_that_differ_has_their_spread() -> None:
    pooled = families.pool_multipliers(build_members((1.0, 1.02), (1.2, 1.224), (1.1, 1.122)))
    assert pooled is not None
    # By hand: equal errors, so tau^2 is the variance of the logarithms less that of an error.
    logs = [math.log(middle * math.sqrt(1.02)) for middle in (1.0, 1.2, 1.1)]
    mean = sum(logs) / 3
    variance = sum((log - mean) ** 2 for log in logs) / 2
    error = math.log(1.02) / 2 / 2.570582  # t with the five degrees of the intervals
    assert pooled["tau"] == pytest.approx(math.sqrt(variance - error**2))
    assert math.log(pooled["high"]) - mean == pytest.approx(4.302653 * math.sqrt(variance / 3)), "t with 2 degrees"
    assert families.pool_multipliers(build_members((1.0, 1.02))) is None


def test_pages_and_api_show_the_family_with_its_pooled_estimate(compared_track: Track, client: Client) -> None:
    first, near = (propose_idea(compared_track, number, "aaaaaaaa") for number in (1, 2))
    decide(near)
    alone = propose_idea(compared_track, 3, "cccccccc")
    end_runs(first)
    version = compute_version(compared_track)  # no task replaces the rows
    table = StandingsTable.objects.create(track=compared_track, axis="flops", version=version)
    for position, entry in enumerate((first, near)):
        run = first.runs.get()
        fields = {
            "multiplier": 1.05,
            "multiplier_low": 1.0,
            "multiplier_high": 1.1,
            "bits_per_byte": 1.0,
            "trust": "scored",
        }
        Standing.objects.create(table=table, entry=entry, position=position, latest_run=run, **fields)
    page = client.get(near.get_absolute_url()).content.decode()
    assert f'<a href="/families/{first.pk}/">family of 2 near entries</a>' in page
    assert "near entries" not in client.get(alone.get_absolute_url()).content.decode()
    page = client.get(f"/families/{first.pk}/").content.decode()
    assert f'waits for <a href="{first.get_absolute_url()}">{first.title}</a>' in " ".join(page.split())
    family = client.get(f"/api/v1/families/{first.pk}").json()
    assert [(one["id"], one["distance"], one["waits_for"]) for one in family["members"]] == [
        (first.pk, 0, None),
        (near.pk, 0, first.pk),
    ]
    assert f"{family['pooled']['multiplier']:.2f}×" in page
    assert client.get(f"/families/{near.pk}/").status_code == 404


def test_api_lists_entries_like_a_graph_nearest_first(compared_track: Track, client: Client) -> None:
    first = propose_idea(compared_track, 1, "aaaaaaaa", "bbbbbbbb")
    far = propose_idea(compared_track, 2, "cccccccc")
    near = propose_idea(compared_track, 3, "aaaaaaaa")
    expected = [(first.pk, 0), (near.pk, 0.5), (far.pk, 1)]
    own = ",".join({**PATTERNS, "aaaaaaaa": 1, "bbbbbbbb": 1})
    for like in (first.pk, first.graphs.get().hash, own):
        found = client.get("/api/v1/entries", {"like": like}).json()["items"]
        assert [(entry["id"], entry["distance"]) for entry in found] == expected
    assert client.get("/api/v1/entries?like=99").status_code == 422
    limited = client.get("/api/v1/entries", {"like": first.pk, "limit": 1}).json()
    assert (len(limited["items"]), limited["cursor"]) == (1, None)


def test_api_finds_entries_by_operator_and_pattern(compared_track: Track, client: Client) -> None:
    entry = propose_idea(compared_track, 1, "aaaaaaaa")
    other = propose_idea(compared_track, 2)
    other.graphs.update(summary={**other.graphs.get().summary, "calls": {"features": {"aten::cumsum": 1}}})
    for pattern, expected in (("aaaaaaaa", entry), ("aten::cumsum", other)):
        [found] = client.get("/api/v1/entries", {"pattern": pattern}).json()["items"]
        assert found["id"] == expected.pk
    assert client.get("/api/v1/entries?pattern=aten::fft").json()["items"] == []


def test_comment_on_a_copy_shows_the_verdict_of_the_earlier_entry(db: None) -> None:
    track, entries = boards.create_board()
    Track.objects.update(is_traced=False, approval=Track.Approval.ANYONE)
    fields = {"state": Entry.State.PROPOSED, "obstacle": "duplicate", "duplicate_of": entries["Better"]}
    copy = scene.create_entry(track, "Copy", sha="c" * 40, **fields)
    copy = Entry.objects.select_related("track__season").get(pk=copy.pk)
    verdict = entry_status.get_entry_status(entries["Better"], timezone.now()).line
    text = comment_text.describe_entry(copy, timezone.now())
    assert verdict in entry_status.get_entry_status(copy, timezone.now()).line
    assert "| the baseline | 1." in text
    assert f"[entry {entries['Better'].pk}]" in text


def test_entry_on_a_track_stays_there_when_the_chain_gets_an_earlier_track(
    track: Track, main_repository: Repository
) -> None:
    playground = create_track("playground-h100", track.season)
    submitted = {"repository": str(main_repository.path), "sha": "main", "title": "x", "architecture": "gpt"}
    entry = intake.submit_entry(**submitted, track=playground, hypothesis="It learns.")
    station = create_track("ci-16gb", track.season)
    playground.refresh_from_db()
    assert playground.qualifier == station
    assert intake.submit_entry(**submitted, track=playground, hypothesis="It learns.") == entry
    other = {**submitted, "architecture": "smear"}
    assert intake.submit_entry(**other, track=playground, hypothesis="It learns.").track == station
