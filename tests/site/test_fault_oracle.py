"""The oracle of the test with faults reports each kind of violation."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support import fault_oracle
from tests.support.faulty_node import STEPS
from tests.support.github_server import GitHub
from tests.support.hub_server import Hub, Repository
from tests.support.site_with_faults import REPOSITORY_NAME, SiteWithFaults

pytestmark = pytest.mark.processes

SHA = "a" * 40


class EndedSite:
    """A site with one pull request whose work is done without faults."""

    def __init__(self) -> None:
        self.github, self.hub, self.shas = GitHub(), Hub(), [SHA]
        self.nodes = [EndedNode()]
        repository = self.github.get_or_create_repository(REPOSITORY_NAME)
        bot, ours = {"login": "train[bot]"}, f"/repos/{REPOSITORY_NAME}/issues/1"
        repository.comments = {
            1: {"id": 1, "issue_url": ours, "user": {"login": "mara"}, "body": "/approve"},
            2: {"id": 2, "issue_url": ours, "user": bot, "body": "2.5000 bits per byte"},
        }
        repository.reactions = [(1, "+1")]
        repository.checks = {1: {"head_sha": SHA, "status": "completed", "conclusion": "success"}}
        weights = self.hub.repositories.setdefault("trains/one", Repository())
        weights.add_commit("initial commit", "", {})
        self.commit = weights.add_commit("Weights", "", {}).id


class EndedNode:
    def __init__(self) -> None:
        self.reported = {1: 1.0, 2: 8.0, 3: 1.0}
        self.problems: list[str] = []


def build_result(site: EndedSite) -> dict[str, Any]:
    kinds = {1: "smoke", 2: "train", 3: "score"}
    return {
        "entries": [{"id": 1, "sha": SHA, "state": "approved"}],
        "runs": [{"id": 1, "entry__sha": SHA, "state": "finished"}],
        "jobs": [{"id": job, "kind": kind, "state": "done", "attempts": 1} for job, kind in kinds.items()],
        "leases": [
            {
                "id": job,
                "job": job,
                "node": 1,
                "state": "finished",
                "outcome": "done",
                "machine_fault": False,
                "seconds": 1.0,
                "log_received": 9,
            }
            for job in kinds
        ],
        "credited": {"1": 3.0},
        "points": [(1, "train", step, 10 / step) for step in range(1, STEPS + 1)],
        "logs": [(job, 0, 9) for job in kinds],
        "scored": [(1,)],
        "outbox": [],
        "publications": [(1, site.commit, "trains/one")],
        "damaged": [],
        "partials": [],
    }


def find_violations(site: EndedSite, site_state: dict[str, Any]) -> list[str]:
    return fault_oracle.find_violations(cast("SiteWithFaults", site), site_state)


def test_site_without_faults_has_no_violation() -> None:
    site = EndedSite()
    assert find_violations(site, build_result(site)) == []


@pytest.mark.parametrize(
    ("part", "value", "violation"),
    [
        ("entries", [], "the entries are not those"),
        ("runs", [], "the runs are not those"),
        ("jobs", [], "jobs of these kinds"),
        ("leases", [], "0 accepted results"),
        ("credited", {"1": 4.0}, "4.0 s credited"),
        ("points", [(1, "train", 1, 10.0)] * 2, "the curve of run 1"),
        ("logs", [(1, 0, 9), (1, 9, 9), (2, 0, 9), (3, 5, 4)], "the log of lease 3 continues at 5, after 0 bytes"),
        ("scored", [(1,), (1,)], "scored 2 times"),
        ("outbox", [("github.check:1", "failed", "")], "outbox:"),
        ("publications", [], "published:"),
        ("damaged", ["f" * 64], "damaged or lost"),
        ("partials", [2], "unfinished uploads"),
    ],
)
def test_each_loss_in_the_database_is_a_violation(part: str, value: Any, violation: str) -> None:
    site = EndedSite()
    violations = find_violations(site, {**build_result(site), part: value})
    assert any(violation in sentence for sentence in violations), violations


def test_effect_that_github_or_the_hub_has_twice_is_a_violation() -> None:
    site = EndedSite()
    site_state = build_result(site)
    repository = site.github.get_or_create_repository(REPOSITORY_NAME)
    repository.comments[3] = {**repository.comments[2], "id": 3}
    repository.checks[2] = dict(repository.checks[1])
    repository.reactions *= 2
    site.hub.repositories["trains/one"].add_commit("Weights again", "", {"model.safetensors": b"other"})
    sentences = "\n".join(find_violations(site, site_state))
    for expected in ("has the comments", "has the checks", "reactions to the 1 commands", "the Hub has the commits"):
        assert expected in sentences
    assert "the Hub has a version twice" in sentences
    assert "the weights on the Hub have changed" in sentences


def test_new_description_of_the_same_weights_is_no_violation() -> None:
    site = EndedSite()
    latest = site.hub.repositories["trains/one"].add_commit("Weights", "version 2", {})
    site_state = {**build_result(site), "publications": [(1, latest.id, "trains/one")]}
    assert find_violations(site, site_state) == []


def test_job_with_two_accepted_results_is_a_violation() -> None:
    site = EndedSite()
    site_state = build_result(site)
    site_state["leases"].append({**site_state["leases"][2], "id": 4, "log_received": 0})
    sentences = "\n".join(find_violations(site, site_state))
    assert "job 3 has 2 accepted results: [3, 4]" in sentences
    assert "lease 4: 1.0 s credited, None s reported" in sentences
