"""Honest models pass all checks, and their score is their loss."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support.in_process_scorer import InProcessModel, write_and_open_run
from tests.support.scoring_models import documents, encode_held_out, needs_sandbox, score_in_sandbox, write_run
from trainer.checkpoint.store import get_checkpoint_path, load_model, write_checkpoint
from trainer.models import ARCHITECTURES, load_architecture
from trainer.sandbox import get_driver
from trainer.scoring.model_client import ModelProcessClient
from trainer.scoring.run_folder import RunFolder
from trainer.scoring.scorer import score_model


def write_real_run(folder: Path, arch: str, seed: int = 3) -> Path:
    """A run of one of our own architectures, with weights that are not at rest."""
    write_run(folder)
    run = json.loads((folder / "run.json").read_text())
    module = load_architecture(arch)
    config = module.Config.sized(2, run["model"]["vocabulary_size"], run["model"]["sequence_length"])
    torch.manual_seed(seed)
    model = module.Model(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    write_checkpoint(get_checkpoint_path(folder, 20), model, [], {"step": 20})
    (folder / "run.json").write_text(json.dumps({**run, "arch": arch, "model": dataclasses.asdict(config)}))
    return folder


def compute_loss(folder: Path) -> tuple[float, int]:
    """(nats per token, tokens), computed here and now: windows of T behind an end-of-text, T the training length."""
    model = load_model(folder)
    tokenizer, found = encode_held_out(folder)
    length = RunFolder.open(folder).sequence_length
    total = 0.0
    with torch.inference_mode():
        for text in found:
            line = torch.tensor([tokenizer.end_of_text, *text.tokens.tolist()])
            for start in range(0, len(text.tokens), length):
                row = line[start : start + length + 1]
                total += float(cross_entropy(model(row[None, :-1])[0].double(), row[1:], reduction="sum"))
    tokens = sum(len(text.tokens) for text in found)
    return total / tokens, tokens


@needs_sandbox
@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_score_of_our_architectures_equals_their_loss(arch, tmp_path):
    folder = write_real_run(tmp_path / "run", arch)
    nats, tokens = compute_loss(folder)
    run = RunFolder.open(folder)
    tokenizer, found = encode_held_out(folder)
    with (
        ModelProcessClient(run, get_driver("bubblewrap")) as probe,
        ModelProcessClient(run, get_driver("bubblewrap")) as full,
    ):
        outcome = score_model(
            probe, full, found, tokenizer.byte_lengths(), tokenizer.end_of_text, lambda stage, done: None
        )
    assert outcome.bits.tokens == tokens
    assert outcome.bits.nats_per_token == pytest.approx(nats, abs=1e-5)
    size = sum(len(document.text.encode()) for document in documents())
    assert outcome.bits.bits_per_byte == pytest.approx(nats * tokens / math.log(2) / size, abs=1e-5)


@needs_sandbox
def test_honest_model_passes_and_report_counts_probes(tmp_path):
    outcome = score_in_sandbox(write_run(tmp_path / "run"))
    prefix, causality, order = (outcome.checks[name] for name in ("prefix", "causality", "order"))
    assert prefix["cuts"] == 64
    assert prefix["catch_probability"]["0.05"] == pytest.approx(1 - 0.95**64)
    assert causality["changes"] == 16
    assert order["rows"] > 100
    assert max(check["max_difference"] for check in (prefix, causality, order)) < 1e-4
    assert abs(outcome.checks["memory"]["mean_loss"]) < 0.2
    assert outcome.bits.documents == 12


@needs_sandbox
def test_uniform_model_needs_log_vocabulary_nats(tmp_path):
    folder = write_run(tmp_path / "run", "return self.honest(tokens) * 0")
    outcome = score_in_sandbox(folder)
    assert outcome.bits.nats_per_token == pytest.approx(math.log(RunFolder.open(folder).vocabulary_size), abs=1e-6)


MODELS = {"litgpt": 12} | dict.fromkeys(ARCHITECTURES.keys() - {"litgpt"}, 47)
"""How many of each, 200 in all. litgpt has none as small as the others."""

RANGES = {
    "depth": (2, 3),
    "width": (64, 128),
    "heads": (1, 2),
    "windows": ("L", "SL"),
    "short_window": (4, 9),
    "document_mask": (False, True),
    "tied_head": (False, True),
    "value_embeddings": (False, True),
}
"""What is drawn: one of these values for each field that an architecture's configuration has."""


def build_random_model(arch: str, run: RunFolder, rng: random.Random) -> torch.nn.Module:
    """A small model of random shape, its weights far from rest."""
    module = load_architecture(arch)
    config = module.Config.sized(2, run.vocabulary_size, run.sequence_length)
    known = {field.name for field in dataclasses.fields(config)}
    chosen = {
        name: rng.choice(values)
        for name, values in RANGES.items()
        if name in known and type(getattr(config, name)) is type(values[0])
    }
    model = module.Model(dataclasses.replace(config, **chosen)).eval()
    scale = rng.choice((0.02, 0.1, 0.4))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return model


@pytest.fixture
def one_thread():
    """Such small products are done before a second thread has woken up."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("arch", sorted(ARCHITECTURES))
def test_random_honest_models_pass_all_checks(arch, tmp_path):
    run = write_and_open_run(tmp_path / "run")
    tokenizer, found = encode_held_out(run.folder)
    lengths, end = tokenizer.byte_lengths(), tokenizer.end_of_text
    for seed in range(MODELS[arch]):
        torch.manual_seed(seed)
        model = InProcessModel(run, build_random_model(arch, run, random.Random(seed)))
        outcome = score_model(model, model, found[:4], lengths, end, lambda stage, done: None, random.Random(seed))
        # The scorer's own limit is 1e-4.
        assert abs(outcome.checks["prefix"]["mean_gain"]) < 3e-5


def test_random_honest_models_are_two_hundred():
    assert sum(MODELS.values()) >= 200
