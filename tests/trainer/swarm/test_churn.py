"""Simulated churn: rebalancing is close to the best assignment."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.support.paths import REPOSITORY


def test_rebalancing_approaches_the_best_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY)
    from benchmarks.swarm import churn
    from benchmarks.swarm.churn_picture import picture

    assert churn.trace(3, 2) == churn.trace(3, 2)
    story = churn.simulate(3, 2)
    assert story["with"]["of_static"] > 0.95
    assert story["with"]["of_ideal"] > 0.85
    assert story["ideal"]["even"] > max(story["with"]["even"], story["without"]["even"])
    assert story["with"]["moves"] > 0
    ElementTree.fromstring(picture(story))  # noqa: S314 (our own)


def test_lost_micro_batches_are_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY)
    from benchmarks.swarm.churn import Churn, Visit

    visits = [Visit(f"p{n}", 1.0, 0.0, 10_000.0 if n > 5 else 500.0) for n in range(24)]
    churn = Churn(visits, 1, "with")
    churn.run(3000.0)
    assert churn.lost > 0
    assert all(peer.name in churn.peers for batch in churn.under_way for peer in batch.path)
    assert len(churn.done) > 3000
