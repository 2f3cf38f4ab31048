"""A tied head: both ends of the model agree on one gradient, or the step is repeated without the wrong peer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.swarm_chain import build_stages, build_tiny_config, train_stages
from tests.support.waits import WAIT_SECONDS
from trainer.checkpoint.store import CheckpointError
from trainer.data.dataset import Dataset
from trainer.swarm import checkpoint, messages
from trainer.swarm.comparison import compute_max_difference, has_equal_hashes, has_exact_cover
from trainer.swarm.data import Batches
from trainer.swarm.fault_injection import Fault
from trainer.swarm.journal import Journal, get_losses
from trainer.swarm.local_swarm import FaultPlan, LocalSwarm
from trainer.swarm.membership import Membership, SwarmMember
from trainer.swarm.stage_client import StageClient
from trainer.swarm.tied import choose_source, list_tied_stages
from trainer.swarm.transaction import Transaction
from trainer.swarm.transport import Transport

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")

A, B, C, D, E, F = ("Qm" + letter * 44 for letter in "abcdef")
RIGHT, WRONG = "1" * 64, "2" * 64


@pytest.fixture(scope="module")
def dataset(dataset_folder: Path) -> Dataset:
    return Dataset.open(dataset_folder)


@pytest.fixture
def membership(dataset: Dataset, tmp_path: Path) -> Iterator[Membership]:
    """Membership of a swarm of three stages, without members."""
    config = build_tiny_config(dataset, "nanogpt", stages=3)
    with contextlib.closing(Journal(tmp_path)) as journal:
        yield Membership(Transport(tmp_path), config, journal, 1.0)


@pytest.fixture
def transaction(dataset: Dataset, membership: Membership) -> Transaction:
    """The first step of a swarm of three stages with two members each: A and B, C and D, E and F."""
    for number, name in enumerate((A, B, C, D, E, F)):
        membership.members[name] = SwarmMember(messages.Peer(name=name), number // 2, number)
    batches = Batches(dataset, membership.config)
    return Transaction(0, batches, membership, StageClient(membership.transport))


def build_vote(own: str, read: str, source: str) -> messages.Vote:
    digests = messages.TiedDigests(own=own, read=read, source=source)
    return messages.Vote(digest=RIGHT, squared_norm=1.0, tied=digests)


def build_votes(**changes: messages.Vote) -> dict[str, messages.Vote]:
    """Return right votes of the two ends, and the middle's, with changes by name: a, b, e or f."""
    votes = {"a": build_vote(RIGHT, RIGHT, E), "b": build_vote(RIGHT, RIGHT, F), "e": build_vote(RIGHT, RIGHT, A)}
    votes |= {"f": build_vote(RIGHT, RIGHT, B), "c": messages.Vote(digest=RIGHT, squared_norm=1.0)}
    votes |= {"d": votes["c"]} | changes
    return {"Qm" + letter * 44: each for letter, each in votes.items()}


def test_equal_copies_at_both_ends_are_accepted(transaction: Transaction) -> None:
    assert transaction.check_tied(build_votes())
    assert len(transaction.membership.members) == 6


def test_mean_of_a_minority_evicts_its_member(transaction: Transaction) -> None:
    assert not transaction.check_tied(build_votes(f=build_vote(WRONG, RIGHT, B)))
    assert transaction.membership.members.keys() == {A, B, C, D, E}


def test_vote_without_digests_evicts_its_member(transaction: Transaction) -> None:
    assert not transaction.check_tied(build_votes(b=messages.Vote(digest=RIGHT, squared_norm=1.0)))
    assert B not in transaction.membership.members


def test_source_of_two_misreadings_is_evicted_alone(transaction: Transaction) -> None:
    assert not transaction.check_tied(build_votes(a=build_vote(RIGHT, WRONG, E)))
    assert len(transaction.membership.members) == 6, "the reader or the source may be wrong"
    assert not transaction.check_tied(build_votes(b=build_vote(RIGHT, WRONG, E)))
    assert transaction.membership.members.keys() == {A, B, C, D, F}


def test_misreading_cannot_be_blamed_on_another_stage(transaction: Transaction) -> None:
    for _ in range(2):
        assert not transaction.check_tied(build_votes(a=build_vote(RIGHT, WRONG, C)))
    assert transaction.membership.members.keys() == {B, C, D, E, F}


def test_last_stage_waits_for_the_first_and_loads_from_it(membership: Membership) -> None:
    assigned = {A: 2, B: 1, C: 0, D: 0}
    assert membership.choose_batch(assigned, lambda stage: ()) == {B: 1, C: 0}
    assert membership.build_load(0, 0, ()).tied_sources == ()
    membership.members[C] = SwarmMember(messages.Peer(name=C), 0, 0)
    sources = {0: (messages.Peer(name=C),)}
    assert membership.choose_batch({A: 2, D: 0}, lambda stage: sources.get(stage, ())) == {A: 2, D: 0}
    assert membership.build_load(2, 0, ()).tied_sources == sources[0]
    assert membership.build_load(1, 0, ()).tied_sources == ()
    assert membership.build_load(2, 0, sources[0]).tied_sources == (), "a whole state has the matrix"
    assert membership.choose_batch({A: 2}, lambda stage: ()) == {A: 2}, "no first stage to wait for"


def test_separate_head_has_no_tied_stages(dataset: Dataset) -> None:
    assert list_tied_stages(build_tiny_config(dataset, "nanogpt", stages=3)) == (0, 2)
    assert list_tied_stages(build_tiny_config(dataset, "nanogpt", stages=1)) == ()
    assert list_tied_stages(build_tiny_config(dataset, "rwkv5")) == ()


def test_sources_are_spread_and_change_with_the_attempt() -> None:
    def list_sources(attempt: int) -> list[str]:
        request = messages.Prepare(attempt=attempt, step=0, held=(), peers=(A, B), other_end=(D, E, F), timeout=1)
        return [choose_source(request, peer) for peer in (A, B)]

    pairs = [list_sources(attempt) for attempt in range(20)]
    assert all(first != second for first, second in pairs)
    assert {first for first, _ in pairs} == {D, E, F}


def test_checkpoint_with_unequal_copies_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    config = build_tiny_config(dataset, "nanogpt")
    stages = build_stages(config)
    list(train_stages(stages, Batches(dataset, config), 2))
    for stage in stages:
        checkpoint.save_stage(tmp_path, config, stage.index, 2, stage.copy_state())
    model = checkpoint.join_stages(tmp_path, config, 2)
    assert torch.equal(model.get_parameter("embedding.weight"), stages[1].parameters["embedding.weight"])
    state = stages[1].copy_state()
    state["weight.embedding.weight"][0, 0] += 1
    checkpoint.save_stage(tmp_path, config, 1, 2, state)
    with pytest.raises(CheckpointError, match=r"two different copies of weight\.embedding\.weight"):
        checkpoint.join_stages(tmp_path, config, 2)


@pytest.mark.slow
def test_wrong_mean_for_the_other_end_leaves_losses_right(dataset_folder: Path, tmp_path: Path) -> None:
    """One of six workers sends the other end another mean than it uses itself, from the second step on."""
    config = build_tiny_config(Dataset.open(dataset_folder), "nanogpt", steps=6, checkpoint_every=3, micro_batches=6)
    plan = FaultPlan({"worker-0": [Fault(kind="drop", point="lie:tied mean", step=1)]})
    modules = {"worker-0": "tests.support.swarm_liar"}
    with LocalSwarm(config, dataset_folder, [0, 1] * 3, plan, 10, tmp_path / "run", modules=modules) as swarm:
        lines = swarm.run(WAIT_SECONDS)
        assert not swarm.find_leftovers()
    assert compute_max_difference(get_losses(lines), config, dataset_folder) < 1e-4
    assert has_exact_cover(lines, config)
    assert has_equal_hashes(lines)
    assert any("two ends differ" in line["why"] for line in lines if line["kind"] == "leave")
    checkpoint.join_stages(tmp_path / "run", config, 6)  # raises if the copies differ
