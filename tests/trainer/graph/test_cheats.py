"""Cheats against graphs: each does not trace, has no effect, is charged, corrected or refused. Honest models pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.cheats.base import WIDTH, Config, T, V, vary
from benchmarks.cheats.judge import CASES, Judge, start_tracing
from trainer.graph.files import TracedArchitecture
from trainer.graph.model import build_model
from trainer.graph.reading import parse_files
from trainer.graph.trace import trace_architecture

pytestmark = pytest.mark.slow  # traces over a hundred architectures


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    folder = tmp_path_factory.mktemp("cheats")
    start_tracing(folder)
    return Judge(folder / "files")


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name.replace(" ", "_") for case in CASES])
def test_architecture_gets_its_verdict(judge: Judge, number: int) -> None:
    found = judge.judge(number)
    assert found.verdict == CASES[number].expected, found.figures


def test_cheats_that_look_ahead_gain_nothing(judge: Judge) -> None:
    honest = judge.honest_score.bits.bits_per_byte
    for number, case in enumerate(CASES):
        if case.expected == "corrected":
            bits = judge.score(judge.read(number)).bits
            assert bits.bits_per_byte > honest - 3 * (bits.stderr or 0), case.name


def trace(**methods: object) -> TracedArchitecture:
    return trace_architecture(vary(**methods), Config(V, T))  # type: ignore[arg-type]


def test_memory_of_other_rows_reads_as_zeros() -> None:
    def read_zeros(self: nn.Module, tokens: Tensor) -> Tensor:
        return self.embedding(tokens) + torch.zeros(tokens.size(0), T, WIDTH)

    # The trace refuses `torch.empty`, so the files are changed by hand.
    files = trace(features=read_zeros).to_files()
    changed = {name: data.replace(b'"aten::zeros"', b'"aten::empty.memory_format"') for name, data in files.items()}
    assert changed != files
    torch.manual_seed(0)
    model = build_model(parse_files(changed)).eval()
    torch.full((4, T, WIDTH), 1e9)
    tokens = torch.zeros(4, T, dtype=torch.int64)
    assert torch.equal(model.features(tokens), model.get_parameter("embedding.weight")[tokens])
