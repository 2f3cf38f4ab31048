"""Votes and audits of gradient sums: a liar is found, and a single vote proves nothing about another peer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.in_process_swarm import read_sanctions, train_in_process
from tests.support.swarm_chain import build_tiny_config
from trainer.data.dataset import Dataset
from trainer.swarm import messages
from trainer.swarm.data import Batches
from trainer.swarm.frames import CallRefusedError
from trainer.swarm.journal import read_journal
from trainer.swarm.sum_exchange import SumExchange
from trainer.swarm.worker import Worker

pytest.importorskip("hivemind", reason="the extra `swarm` is not installed")


def list_sanctions(
    dataset_folder: Path, folder: Path, exchange: type[SumExchange], workers: int = 3, audit: float = 0.0
) -> list[tuple[str, str]]:
    """Train workers of one stage, of which worker 1 lies, with one micro-batch a step; return the sanctions."""
    dataset = Dataset.open(dataset_folder)
    batches = Batches(dataset, build_tiny_config(dataset, stages=1, steps=2, micro_batches=1, audit=audit))
    liar = type("LyingWorker", (Worker,), {"exchange_type": exchange})
    train_in_process(batches, folder, [0] * workers, {1: liar})
    return read_sanctions(folder)


class FalseNormExchange(SumExchange):
    """Vote that each idle peer has published a sum other than zero."""

    async def vote(self, request: messages.Prepare) -> messages.Vote:
        vote = await super().vote(request)
        return vote.model_copy(update={"norms": tuple((peer, norm or 1.0) for peer, norm in vote.norms)})


class FalseDistanceExchange(FalseNormExchange):
    """Repeat that in audits."""

    async def compare_replay(self, request: messages.CompareReplay) -> messages.ReplayDistance:
        return messages.ReplayDistance(relative=1.0, finite=True)


class FalseSumExchange(SumExchange):
    """Publish a sum other than zero without a micro-batch."""

    def get_own_part(self, part: messages.SumPart) -> Tensor:
        tensor = super().get_own_part(part)
        return tensor if self.state.held else torch.ones_like(tensor)


class UnreadableSumExchange(SumExchange):
    """Refuse to auditors what each peer has read for the reduction."""

    async def vote(self, request: messages.Prepare) -> messages.Vote:
        self.reads_left = len(request.peers)
        return await super().vote(request)

    def get_own_part(self, part: messages.SumPart) -> Tensor:
        self.reads_left -= 1
        if self.reads_left < 0:
            raise CallRefusedError("slow", "the sum is not available yet")
        return super().get_own_part(part)


def test_idle_peer_stays_when_one_vote_lies_about_its_sum(dataset_folder: Path, tmp_path: Path) -> None:
    assert list_sanctions(dataset_folder, tmp_path, FalseNormExchange) == []


def test_idle_peer_stays_when_an_auditor_lies_about_its_sum(dataset_folder: Path, tmp_path: Path) -> None:
    sanctions = list_sanctions(dataset_folder, tmp_path, FalseDistanceExchange)
    assert {label for label, _ in sanctions} <= {"1"}


def test_idle_peer_with_a_sum_is_banned(dataset_folder: Path, tmp_path: Path) -> None:
    why = "its gradient sum is not zero without any micro-batch"
    assert list_sanctions(dataset_folder, tmp_path, FalseSumExchange) == [("1", why)]


@pytest.mark.parametrize("workers", [2, 3])
def test_peer_whose_sum_no_auditor_can_read_leaves(dataset_folder: Path, tmp_path: Path, workers: int) -> None:
    sanctions = list_sanctions(dataset_folder, tmp_path, UnreadableSumExchange, workers, audit=1.0)
    assert {label for label, _ in sanctions} == {"1"}
    assert all("no audit" in why for _, why in sanctions)
    assert not any(line["kind"] in ("ban", "first_strike") for line in read_journal(tmp_path / "run"))


class WrongNormExchange(SumExchange):
    async def vote(self, request: messages.Prepare) -> messages.Vote:
        return (await super().vote(request)).model_copy(update={"squared_norm": 1e300})


def test_worker_that_votes_with_a_wrong_norm_is_evicted(dataset_folder: Path, tmp_path: Path) -> None:
    assert {label for label, _ in list_sanctions(dataset_folder, tmp_path, WrongNormExchange)} == {"1"}
    scales = [line["clip_scale"] for line in read_journal(tmp_path / "run") if line["kind"] == "commit"]
    assert scales
    assert min(scales) > 0.01
