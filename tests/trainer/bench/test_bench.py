"""`dailytrain bench`: contenders, their turns and the results."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from trainer.bench.contender import ContenderWorker
from trainer.bench.peers import PEER_BUILDERS
from trainer.bench.results import build_results
from trainer.bench.round_robin import ContenderResult, RoundRobin
from trainer.bench.spec import PEERS, ContenderSpec, Shape
from trainer.cli.main import main
from trainer.optim.compiled_muon import CompiledMuon
from trainer.training import compilation

SMALL = Shape(depth=2, width=32, heads=2, sequence_length=16, batch=2, vocabulary_size=300, threads=1)
FLAGS = ["--shape", "2x32", "--heads", "2", "--sequence-length", "16", "--batch", "2", "--vocabulary-size", "300"]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["nanogpt", "gpt", *PEERS])
def test_contender_trains_the_shape(name: str) -> None:
    contender = ContenderWorker(ContenderSpec(name, False, SMALL))
    before = [parameter.detach().clone() for parameter in contender.model.parameters()]
    assert contender.describe_model()["parameters"] > 300 * 32
    assert contender.warm_up()["first_steps_seconds"] > 0
    assert contender.run(2)["seconds"] > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, contender.model.parameters(), strict=True))
    # 6 FLOPs a weight of the matrices (12 of 32 x 32 a block, and the head), and attention's two products.
    expected = 6 * (2 * 12 * 32 * 32 + 300 * 32) + 12 * 2 * 16 * 32
    assert contender.report()["flops_per_token"] == pytest.approx(expected, rel=0.1)


def test_contender_compiles_muon_as_training_does(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[CompiledMuon] = []
    monkeypatch.setattr(compilation, "choose_optimizer_backend", lambda resolved: "eager")
    monkeypatch.setattr(CompiledMuon, "compile_step", lambda optimizer: compiled.append(optimizer))
    contender = ContenderWorker(ContenderSpec("gpt", False, SMALL))
    assert len(compiled) == 1
    assert contender.run(1)["seconds"] > 0


def test_peers_are_torch_and_litgpt() -> None:
    assert set(PEER_BUILDERS) == set(PEERS)


def row(name: str, *speeds: float) -> ContenderResult:
    made = ContenderResult(ContenderSpec(name, False, SMALL), process=None, facts={"flops_per_token": 10.0})  # type: ignore[arg-type]
    made.tokens_per_second = list(speeds)
    return made


def test_ratios_compare_with_best_peer_per_repeat() -> None:
    rows = [row("nanogpt", 110, 55, 120), row("gpt", 90, 45, 80), row("torch", 80, 40, 90), row("litgpt", 100, 50, 90)]
    content = build_results(SimpleNamespace(results=rows), peak=2000.0)  # type: ignore[arg-type]
    assert content["best_peer"] == "litgpt"
    assert content["ratio_to_best_peer"] == pytest.approx(1.1)
    assert content["modern_ratio_to_best_peer"] == pytest.approx(0.9)
    assert content["contenders"][0]["mfu"] == pytest.approx(110 * 10 / 2000)
    assert content["contenders"][3]["ratio_to_best_peer"] == 1


@pytest.mark.slow
def test_bench_runs_contenders_in_separate_processes(capfd: pytest.CaptureFixture[str]) -> None:
    flags = [*FLAGS, "--threads", "1", "--device", "cpu", "--only", "torch", "--steps", "1", "--repeats", "2"]
    assert main(["bench", *flags, "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    content = json.loads(out)
    assert content["repeats"] == 2
    assert content["best_peer"] == "torch"
    assert content["ratio_to_best_peer"] is None
    assert content["modern_ratio_to_best_peer"] is None
    assert content["peak_flops"] > 0
    assert content["shape"]["width"] == 32
    assert {"date", "machine", "versions", "steps_per_repeat", "seconds"} <= set(content)
    (contender,) = content["contenders"]
    assert len(contender["tokens_per_second_each"]) == 2
    assert contender["ratio_to_best_peer"] == 1
    assert contender["error"] is None
    assert contender["peak_memory_bytes"] >= 0
    assert 0 < contender["mfu"] < 1


def test_failed_contender_reports_error_and_others_continue() -> None:
    broken = dataclasses.replace(ContenderSpec("torch", False, SMALL), name="absent")
    with RoundRobin([broken]) as turns:
        assert turns.running == []
    assert "absent" in turns.results[0].error
    content = build_results(turns, peak=None)
    assert content["contenders"][0]["error"] == turns.results[0].error
    assert content["best_peer"] is None


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--only", "gpt,jax"], "there is no contender 'jax'; they are nanogpt, gpt, torch, litgpt"),
        (["--shape", "big"], "--shape is LAYERSxWIDTH"),
        (["--width", "33"], "even multiple"),
        (["--batch", "0"], "at least 1"),
    ],
)
def test_bad_input_prints_one_line(flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags, "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
