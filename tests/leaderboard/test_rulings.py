"""Rulings: which entries they concern, the board, new caps, comments, the admin, the page and the API."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse

from leaderboard import caps, graphs, rulings
from leaderboard.models import Entry, Ruling, TracedGraph
from leaderboard.rankings.standings_store import load_standings
from leaderboard.submissions import policy
from scheduler.models import Event
from tests.support import boards, scene
from tests.support.graph_jobs import store_graph

pytestmark = pytest.mark.django_db
CUMSUM = {"calls": {"features": {"aten::cumsum": 1}, "logits": {}}, "patterns": {"aaaaaaaa": 1}}


def rule(**fields: Any) -> Ruling:
    ruling = Ruling.objects.create(text="It peeks.", **fields)
    rulings.apply_rulings()
    return ruling


def list_unranked() -> list[str]:
    return list(Entry.objects.exclude(ruling=None).order_by("pk").values_list("title", flat=True))


def test_ruled_entry_does_not_rank_until_the_ruling_is_revoked(maintainer_client: Client) -> None:
    track, entries = boards.create_board()
    better = entries["Better"]
    form = {
        "text": "It peeks.",
        "effect": "unranked",
        "scope": "entries",
        "listed": [better.pk, entries["baseline"].pk],
    }
    assert maintainer_client.post(reverse("admin:leaderboard_ruling_add"), form).status_code == 302
    ruling = Ruling.objects.get()
    assert (ruling.created_by.username, list_unranked()) == ("mara", ["Better"]), "the baseline always ranks"
    row = load_standings(track).get_row(better.pk)
    assert (row.estimate, row.left_out) == (None, f"Its entry does not rank, by ruling {ruling.pk}.")
    assert rulings.apply_rulings() == 0
    action = {"action": "revoke", "_selected_action": [ruling.pk]}
    maintainer_client.post(reverse("admin:leaderboard_ruling_changelist"), action)
    assert load_standings(track).get_row(better.pk).estimate is not None
    assert not rulings.revoke_ruling(ruling, "mara")
    found = list(Event.objects.about(better).order_by("pk").values_list("sentence", flat=True))
    assert found == [f"Ruling {ruling.pk}: it does not rank.", f"Ruling {ruling.pk} no longer concerns it."]


@pytest.mark.parametrize(
    "fields",
    [
        {"scope": "operator", "operator": "aten::cumsum"},
        {"scope": "operator", "operator": "aaaaaaaa"},
        {"scope": "cap", "cap": "parameters", "cap_value": 150_000},
        {"scope": "cap", "cap": "scoring_flops", "cap_value": 1.5},
        {"scope": "cap", "cap": "source_bytes", "cap_value": 10},
    ],
)
def test_ruling_concerns_past_and_coming_entries_but_not_main(fields: dict[str, Any]) -> None:
    track = scene.create_track()
    main = scene.create_entry(track, "main", kind=Entry.Kind.MAIN, sha="0" * 40)
    baseline = store_graph(main, **CUMSUM, parameters=200_000)
    store_graph(scene.create_entry(track, "Other", sha="f" * 40, source_bytes=10))

    def enter(title: str, sha: str) -> None:
        entry = scene.create_entry(track, title, sha=sha * 40, source_bytes=11)
        graph = store_graph(entry, **CUMSUM, parameters=200_000, scoring_flops_per_token=500_000.0)
        graph.baseline_graph = baseline
        graph.save()

    enter("Past", "1")
    ruling = rule(**fields)
    assert list_unranked() == ["Past"]
    enter("Coming", "2")
    rulings.apply_rulings()
    assert list_unranked() == ["Past", "Coming"]
    rulings.revoke_ruling(ruling, "mara")
    assert list_unranked() == []


def test_ruling_on_a_family_leaves_other_entries() -> None:
    track = scene.create_track()
    first, near, other = (scene.create_entry(track, title, sha=title * 40) for title in ("a", "b", "c"))
    Entry.objects.filter(pk__in=[first.pk, near.pk]).update(family=first)
    rule(scope="family", family=first)
    assert list_unranked() == ["a", "b"]
    assert other.ruling is None


def test_entry_of_two_rulings_ranks_once_both_are_revoked() -> None:
    track = scene.create_track()
    store_graph(scene.create_entry(track, "Both"), **CUMSUM)
    for operator in ("aten::cumsum", "aaaaaaaa"):
        rule(scope="operator", operator=operator)
    for ruling, unranked in zip(Ruling.objects.order_by("pk"), (["Both"], []), strict=True):
        rulings.revoke_ruling(ruling, "mara")
        assert list_unranked() == unranked


def test_new_cap_holds_for_entries_from_then_on() -> None:
    track = scene.create_track()
    past = store_graph(scene.create_entry(track, "Past"))
    ruling = rule(effect="cap", scope="cap", cap="parameters", cap_value=100_000)
    coming = store_graph(scene.create_entry(track, "Coming", sha="1" * 40))
    for graph in TracedGraph.objects.select_related("entry", "season"):
        graphs.check_caps(graph)
    found = dict(TracedGraph.objects.values_list("entry__title", "problem"))
    assert found == {"Past": "", "Coming": caps.describe_cap_violations(coming)}
    assert "20,000 over the season's cap of 100,000" in found["Coming"]
    assert list_unranked() == []
    rulings.revoke_ruling(ruling, "mara")
    assert set(TracedGraph.objects.values_list("problem", flat=True)) == {""}
    assert past.entry.ruling is None


def test_caps_of_many_graphs_take_two_queries(django_assert_num_queries: Any) -> None:
    track = scene.create_track()
    for number in range(3):
        store_graph(scene.create_entry(track, f"Idea {number}", sha=f"{number:040x}"))
    traced = list(TracedGraph.objects.select_related("entry", "season", "baseline_graph"))
    with django_assert_num_queries(2):
        graphs.check_caps(*traced)


@pytest.mark.parametrize(
    "fields",
    [
        {"scope": "operator"},
        {"scope": "family"},
        {"scope": "cap", "cap": "parameters"},
        {"scope": "cap", "cap": "size", "cap_value": 1.0},
        {"scope": "entries", "operator": "aten::cumsum"},
        {"scope": "operator", "operator": "aten::cumsum", "effect": "cap"},
    ],
)
def test_ruling_with_the_fields_of_another_scope_is_refused(fields: dict[str, Any]) -> None:
    ruling = Ruling(text="It peeks.", **fields)
    with pytest.raises(ValidationError):
        ruling.full_clean()
    with pytest.raises(IntegrityError):
        ruling.save()


def test_saved_ruling_cannot_be_changed_or_deleted(maintainer_client: Client) -> None:
    ruling = rule(scope="operator", operator="aten::cumsum")
    address = reverse("admin:leaderboard_ruling_change", args=[ruling.pk])
    maintainer_client.post(address, {"text": "Another.", "scope": "entries"})
    ruling.refresh_from_db()
    assert (ruling.text, ruling.operator) == ("It peeks.", "aten::cumsum")
    assert maintainer_client.post(reverse("admin:leaderboard_ruling_delete", args=[ruling.pk])).status_code == 403


def test_policy_does_not_approve_what_a_ruling_excludes() -> None:
    track = scene.create_track(is_traced=True)
    entry = scene.create_entry(track, "Ruled", state=Entry.State.PROPOSED, smoke={"passed": True})
    graph = store_graph(entry, **CUMSUM)
    entry.ruling = rule(scope="operator", operator="aten::cumsum")
    assert policy.find_obstacle(entry, graph) == (Entry.Obstacle.RULING, None)


def test_page_and_api_show_rulings_with_their_entries(client: Client) -> None:
    assert "There is no ruling yet." in client.get("/rulings/").content.decode()
    entry = scene.create_entry(scene.create_track(), "Ruled")
    store_graph(entry, **CUMSUM)
    ruling = rule(scope="operator", operator="aten::cumsum")
    page = " ".join(client.get("/rulings/").content.decode().split())
    assert "For graphs with an operator or a pattern: <code>aten::cumsum</code>. They do not rank." in page
    assert f'<a href="{entry.get_absolute_url()}">Ruled</a>' in page
    assert (
        f'<a href="/rulings/#ruling-{ruling.pk}">ruling {ruling.pk}</a>'
        in client.get(entry.get_absolute_url()).content.decode()
    )
    [row] = client.get("/api/v1/rulings").json()
    assert (row["operator"], row["effect"], row["entries"], row["revoked_at"]) == (
        "aten::cumsum",
        "unranked",
        [entry.pk],
        None,
    )
    assert client.get(f"/api/v1/entries/{entry.pk}").json()["ruling"] == ruling.pk
