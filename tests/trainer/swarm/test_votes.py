"""Votes: most of a stage decide on its mean gradient and that mean's norm, which clips the whole model's gradient."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm import messages
from trainer.swarm.data import Batches
from trainer.swarm.journal import Journal
from trainer.swarm.membership import Membership, SwarmMember
from trainer.swarm.stage_client import StageClient
from trainer.swarm.transaction import DivergedError, Transaction, is_same_result
from trainer.swarm.transport import Transport

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

A, B, C, D, E = NAMES = tuple("Qm" + letter * 44 for letter in "abcde")


@pytest.fixture
def transaction(dataset_folder: Path, tmp_path: Path) -> Iterator[Transaction]:
    """The first step of a swarm: A, B and C at the first stage, D and E at the last. E is older than D."""
    batches = Batches(dataset := Dataset.open(dataset_folder), build_tiny_config(dataset))
    with contextlib.closing(Journal(tmp_path)) as journal:
        membership = Membership(Transport(tmp_path), batches.config, journal, 1.0)
        for name in NAMES:
            membership.members[name] = SwarmMember(messages.Peer(name=name), int(name in (D, E)), int(name == D))
        yield Transaction(0, batches, membership, StageClient(membership.transport))


def build_votes(*norms: float) -> dict[str, messages.Vote]:
    votes = (messages.Vote(digest="1" * 64, squared_norm=norm) for norm in norms)
    return dict(zip(NAMES, votes, strict=True))


def find_outvoted(transaction: Transaction, *norms: float) -> list[str]:
    return [n for stage in (0, 1) for n in transaction.find_outvoted(stage, build_votes(*norms), is_same_result)]


@pytest.mark.parametrize("lie", [1e300, 0.0, 1.1, math.inf, math.nan])
def test_norm_against_the_majority_is_outvoted(transaction: Transaction, lie: float) -> None:
    assert find_outvoted(transaction, lie, 1.0, 1.0, 2.0, 2.0) == [A]


@pytest.mark.parametrize("lie", [1e300, math.nan])
def test_norm_of_the_older_of_two_members_decides(transaction: Transaction, lie: float) -> None:
    assert find_outvoted(transaction, 1.0, 1.0, 1.0, lie, 2.0) == [D]


def test_norms_with_rounding_errors_agree(transaction: Transaction) -> None:
    assert find_outvoted(transaction, 1.0, 1.0 + 1e-9, 1.0 - 1e-9, 0.0, 0.0) == []


def test_norm_of_a_model_is_the_sum_of_medians(transaction: Transaction) -> None:
    assert transaction.compute_squared_norm(build_votes(1.0009, 1.0, 1.0, 2.0, 2.0)) == 3.0


@pytest.mark.parametrize("norms", [(math.nan,) * 3, (math.inf,) * 3, (math.nan, math.inf, math.nan)])
def test_norms_that_are_not_finite_raise_diverged_error(transaction: Transaction, norms: tuple[float, ...]) -> None:
    assert find_outvoted(transaction, *norms, 1.0, 1.0) == []
    with pytest.raises(DivergedError):
        transaction.compute_squared_norm(build_votes(*norms, 1.0, 1.0))
