"""Simulated churn: rebalancing is close to the best assignment."""

from __future__ import annotations

import pytest

from tests.support.paths import REPOSITORY


def test_rebalancing_approaches_the_best_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY)
    from benchmarks.swarm import churn

    assert churn.generate_visits(3, 2) == churn.generate_visits(3, 2)
    story = churn.simulate_policies(3, 2)
    assert story["with"]["of_static"] > 0.95
    assert story["with"]["of_ideal"] > 0.85
    assert story["ideal"]["even"] > max(story["with"]["even"], story["without"]["even"])
    assert story["with"]["moves"] > 0


def test_lost_micro_batches_are_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(REPOSITORY)
    from benchmarks.swarm.churn import ChurnSimulation, Visit

    visits = [Visit(f"p{n}", 1.0, 0.0, 10_000.0 if n > 5 else 500.0) for n in range(24)]
    simulation = ChurnSimulation(visits, 1, "with")
    simulation.run(3000.0)
    assert simulation.lost > 0
    assert all(peer.name in simulation.peers for batch in simulation.in_flight for peer in batch.path)
    assert len(simulation.finished_at) > 3000
