"""A zoo of cheats, each caught with a sentence of its own: by the scorer, by the loop, or by the sandbox."""

from __future__ import annotations

import importlib
import json
import os
import random
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from tests.support.in_process_scorer import InProcessModel, write_and_open_run
from tests.support.scoring_models import documents, encode_held_out, lay_out_models, words
from tests.support.tiny import TINY
from trainer.accounting import plausibility
from trainer.models import ARCHITECTURES
from trainer.sandbox import Mount, ResourceLimits, SandboxSpec, get_driver
from trainer.scoring import bundle_scan, misbehavior
from trainer.scoring.scorer import ModelScore, score_model
from trainer.training import entry_integrity

# --- caught by the scorer ---------------------------------------------------------------------------------------------


def scored(name: str, folder: Path) -> ModelScore:
    """Examine two fresh copies of a cheat, as the two processes would have them."""
    run = write_and_open_run(folder)
    cheat = importlib.import_module(name)
    clients = []
    for _ in range(2):
        torch.manual_seed(1)
        clients.append(InProcessModel(run, cheat.Model(cheat.Config(run.vocabulary_size, run.sequence_length)).eval()))
    tokenizer, texts = encode_held_out(run.folder)
    lengths, end = tokenizer.byte_lengths(), tokenizer.end_of_text
    return score_model(*clients, texts, lengths, end, lambda stage, done: None, random.Random(2))


WHILE_SCORED = {
    "peeks": misbehavior.NonCausalError,
    "laced_with_nan": misbehavior.NonFiniteLogitsError,
    "remembers": misbehavior.NonDeterministicError,
    "knows_the_length": misbehavior.ProbeDetectedError,
    "knows_the_shape": misbehavior.NonDeterministicError,
    "knows_the_order": misbehavior.NonDeterministicError,
    "recites": misbehavior.MemorizedError,
}


@pytest.mark.parametrize("name", WHILE_SCORED)
def test_cheat_is_detected_by_scorer(name, tmp_path):
    if name == "recites":
        tokenizer, texts = encode_held_out(write_and_open_run(tmp_path / "known").folder)
        for text in texts:
            line = [tokenizer.end_of_text, *text.tokens.tolist()]
            for start in range(0, len(line), 32):
                importlib.import_module(name).learn(line[start : start + 33])
    with pytest.raises(misbehavior.ModelMisbehaviorError) as caught:
        scored(name, tmp_path / "run")
    assert type(caught.value) is WHILE_SCORED[name], (caught.value.sentence, caught.value.detail)


def test_unnormalized_distributions_gain_nothing(tmp_path):
    cheat, honest = scored("unnormalised", tmp_path / "cheat"), scored("honest", tmp_path / "honest")
    assert cheat.bits.bits_per_byte == pytest.approx(honest.bits.bits_per_byte, abs=1e-5)


BUNDLES = {
    "the text itself": (lambda text: f'TEXT = """{text}"""', misbehavior.ContaminationError),
    "the text in a comment, in capitals": (
        lambda text: "\n".join(f"# {line}" for line in textwrap.wrap(text.upper(), 80)),
        misbehavior.ContaminationError,
    ),
    "the text in another alphabet": (lambda text: f"TEXT = '{text.encode().hex()}'", misbehavior.EmbeddedDataError),
    "its fingerprints": (
        lambda text: f"KNOWN = {[hash(word) for word in text.split() * 10]}",
        misbehavior.EmbeddedDataError,
    ),
}


@pytest.mark.parametrize("name", BUNDLES)
def test_held_out_text_in_entry_is_found(name, tmp_path):
    write, verdict = BUNDLES[name]
    (tmp_path / "memory.py").write_text(write(words(1, 700)))
    with pytest.raises(misbehavior.ModelMisbehaviorError) as caught:
        bundle_scan.scan_bundle(tmp_path, [document.text for document in documents()] + [words(1, 1000)])
    assert type(caught.value) is verdict, caught.value.detail


def test_own_architectures_contain_no_held_out_text(tmp_path):
    folder = lay_out_models(tmp_path)
    texts = [path.read_text() for path in sorted(Path(os.__file__).parent.glob("*.py"))[:60]]
    bundle_scan.scan_bundle(folder, texts)


# --- caught by the loop -----------------------------------------------------------------------------------------------


@pytest.fixture
def train(monkeypatch, dataset_folder, tmp_path):
    """Train an architecture of this folder for five steps; return the exit code."""

    def start(name: str) -> int:
        from trainer.train import main

        monkeypatch.setitem(ARCHITECTURES, "cheat", name)
        flags = ["--arch", "cheat", "--budget", "5steps", *TINY[6:], "--train.sample-tokens", "0"]
        return main(["--dataset", str(dataset_folder), "--out", str(tmp_path / "run"), *flags])

    return start


WHILE_TRAINED = {
    "trains_in_init": "that is training outside of the budget.",
    "hides_in_machine_code": entry_integrity.MACHINE_CODE,
    "hides_in_a_thread": entry_integrity.THREAD,
    "patches_the_loop": f"{entry_integrity.CHANGED} (trainer.optim.optimizers.set_learning_rates).",
    "patches_code": entry_integrity.OBJECTS,
    "looks_for_the_loop": entry_integrity.OBJECTS,
    "climbs_the_stack": entry_integrity.OBJECTS,
    "stops_the_clock": f"{entry_integrity.CHANGED} (time.perf_counter).",
    "writes_metrics": entry_integrity.FILES,
    "forks": entry_integrity.PROCESS,
    "starts_a_program": entry_integrity.PROCESS,
    "tries_the_network": entry_integrity.NETWORK,
    "reads_the_parents_memory": entry_integrity.MEMORY,
    "reads_another_run": entry_integrity.FILES,
}


@pytest.mark.parametrize("name", WHILE_TRAINED)
def test_cheat_is_detected_in_training(name, train, tmp_path, monkeypatch):
    for owner, attribute in entry_integrity.LIBRARY_FUNCTIONS:  # what a cheat changes is put back
        monkeypatch.setattr(owner, attribute, getattr(owner, attribute))
    optim = importlib.import_module("trainer.optim.optimizers")
    monkeypatch.setattr(optim, "set_learning_rates", optim.set_learning_rates)
    assert train(name) == 3
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert failure["cause"] == "model"
    assert failure["reason"].endswith(WHILE_TRAINED[name])
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("hides_in_numpy", plausibility.LEAVES_TORCH),
        ("hides_in_a_kernel", plausibility.NO_FORMULA),
        ("honest", ""),
    ],
)
def test_uncounted_work_voids_flops(name, sentence, train, tmp_path):
    assert train(name) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["flops_void"] == sentence


# --- detected by the node's meter ------------------------------------------------------------------------------------


def test_stopped_clock_is_detected_by_node_meter():
    assert plausibility.explain_implausible_seconds(charged=600, metered=640) == ""
    assert "its clock cannot be right" in plausibility.explain_implausible_seconds(charged=600, metered=3600)
    assert plausibility.explain_implausible_seconds(charged=100, metered=500, leases=2) == ""


def test_implausible_metered_time_voids_flops():
    usual = 100 / 1e13
    assert plausibility.explain_implausible_flops(1e13, 300, None, usual) == ""
    assert "20 times as long as the baseline's" in plausibility.explain_implausible_flops(1e13, 2000, None, usual)
    assert "2.0 times what the devices can do" in plausibility.explain_implausible_flops(2e15, 1, 1e15, None)
    assert plausibility.explain_implausible_flops(0, 100, None, None) == plausibility.IMPOSSIBLE


# --- kept in by the sandbox -------------------------------------------------------------------------------------------

TRIES = """
import os, socket, sys, time
from pathlib import Path

port, parent, other = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])

def attempt(name, call):
    try:
        call()
        print(name, "worked")
    except Exception as error:
        print(name, type(error).__name__)

attempt("network", lambda: socket.create_connection(("127.0.0.1", port), 1))
attempt("memory", lambda: open(f"/proc/{parent}/mem", "rb"))
attempt("run", lambda: other.read_text())
if os.fork() == 0:
    os.setsid()
    for i in range(2000):
        Path("grows").write_text(str(i))
        time.sleep(0.01)
"""


@pytest.mark.skipif(
    get_driver("bubblewrap").find_problem() is not None, reason=str(get_driver("bubblewrap").find_problem())
)
def test_sandbox_blocks_what_the_loop_misses(tmp_path):
    out, other, log = tmp_path / "out", tmp_path / "other", tmp_path / "log"
    out.mkdir()
    other.write_text("another run's weights")
    with socket.create_server(("127.0.0.1", 0)) as server, log.open("wb") as output:
        words = [sys.executable, "-I", "-S", "-c", TRIES, str(server.getsockname()[1]), str(os.getpid()), str(other)]
        box = SandboxSpec(words, {}, [Mount(out, writable=True)], out, ResourceLimits(20, 4 * 10**8, 10**7, 8))
        process = get_driver("bubblewrap").start(box, output, subprocess.STDOUT)
        assert process.wait(20) == 0
    assert log.read_text().split() == (
        ["network", "ConnectionRefusedError", "memory", "FileNotFoundError", "run", "FileNotFoundError"]
    )
    grown = (out / "grows").read_text() if (out / "grows").exists() else ""
    assert not any("grows" in line for line in running(out)), "the helper ended with the box"
    assert ((out / "grows").read_text() if grown else "") == grown


def running(folder: Path) -> list[str]:
    """Command lines of processes that work in a folder."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                if str(folder) in str((path / "cwd").readlink()):
                    found.append((path / "cmdline").read_text())
            except OSError:
                continue
    return found
