"""Small models for the scorer's tests, honest and cheating, in run folders like those of training."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import trainer
from trainer.data.corpora import Document
from trainer.data.tokenizer import Tokenizer, train_bpe
from trainer.data.tokenizer_spec import load_tokenizer
from trainer.sandbox import get_driver
from trainer.scoring.heldout_text import EncodedDocument, encode_documents
from trainer.scoring.model_client import ModelProcessClient, Timeouts
from trainer.scoring.run_folder import RunFolder
from trainer.scoring.scorer import ModelScore, score_model

LENGTH, WIDTH, VOCABULARY = 32, 8, 300

ARCHITECTURE = '''
from dataclasses import dataclass
import os, sys, time, threading, mmap, glob
import torch
from torch import nn

@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    sequence_length: int
    width: int

class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.head = nn.Linear(config.width, config.vocabulary_size, bias=False)
{setup}

    def honest(self, tokens):
        """A bag of words over the past."""
        x = self.embedding(tokens)
        past = x.cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]
        return self.head(torch.tanh(x + past))

    def push(self, logits, tokens, strength, where=None):
        """Raise the logits of the next token, which the input contains."""
        mark = torch.zeros_like(logits).scatter(2, tokens.roll(-1, 1)[..., None], strength)
        mark[:, -1] = 0
        return logits + (mark if where is None else mark * where)

    def features(self, tokens):
        return self(tokens)

    def logits(self, features):
        return features

    def forward(self, tokens):
{forward}
'''


def words(seed: int, count: int) -> str:
    """Return text of made-up words from a vocabulary of 200."""
    rng = random.Random(7)
    vocabulary = ["".join(rng.choices("aeioulnrst", k=rng.randint(2, 7))) for _ in range(200)]
    return " ".join(random.Random(seed).choices(vocabulary, k=count)) + ".\n"


def documents(count: int = 12) -> list[Document]:
    return [Document(str(i), words(i, 20 + 10 * i)) for i in range(count)]


def write_run(folder: Path, forward: str = "return self.honest(tokens)", setup: str = "") -> Path:
    """Write a run's folder, with a `trainer/` package of its architecture in `source/`."""
    folder.mkdir(parents=True)
    tokenizer = train_bpe([document.text for document in documents()], VOCABULARY)
    tokenizer.save(folder / "tokenizer.json")
    config = {"vocabulary_size": tokenizer.vocabulary_size, "sequence_length": LENGTH, "width": WIDTH}
    run = {"format": 1, "arch": "strange", "model": config, "dataset": {"tokenizer_sha256": tokenizer.sha256}}
    (folder / "run.json").write_text(json.dumps(run))
    write_checkpoint(folder / "checkpoints" / "step-00000010", tokenizer.vocabulary_size)
    write_source(folder / "source", forward, setup)
    return folder


def write_checkpoint(folder: Path, vocabulary: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(5)
    shape = (vocabulary, WIDTH)
    weights = {name: rng.normal(size=shape).astype(np.float32) for name in ("embedding.weight", "head.weight")}
    save_file(weights, folder / "model.safetensors")
    spent = {"steps": 10, "tokens": 1000, "flops": 2.5e6, "seconds": 1.5}
    (folder / "state.json").write_text(json.dumps({"step": 10, "spent": spent}))
    (folder / "optimizer.pt").write_bytes(b"")
    names = ("model.safetensors", "optimizer.pt", "state.json")
    files = [
        {"path": name, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
        for name in names
        for content in [(folder / name).read_bytes()]
    ]
    (folder / "manifest.json").write_text(json.dumps({"step": 10, "files": files}))


def write_source(folder: Path, forward: str, setup: str) -> None:
    models = lay_out_models(folder)
    code = ARCHITECTURE.replace("{setup}", textwrap.indent(textwrap.dedent(setup), " " * 8))
    code = code.replace("{forward}", textwrap.indent(textwrap.dedent(forward), " " * 8))
    (models / "strange.py").write_text(code)


def lay_out_models(folder: Path) -> Path:
    """Copy our own models to a source folder, register one more, `strange`, and return the folder for its file."""
    models = folder / "trainer" / "models"
    shutil.copytree(Path(trainer.__file__).parent / "models", models, ignore=shutil.ignore_patterns("__pycache__"))
    with (models / "__init__.py").open("a") as file:
        file.write('\nARCHITECTURES["strange"] = "trainer.models.strange"\n')
    return models


def encode_held_out(folder: Path) -> tuple[Tokenizer, list[EncodedDocument]]:
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    return tokenizer, encode_documents(documents(), tokenizer, None)


def score_in_sandbox(folder: Path, reply: float = 20, seed: int = 1) -> ModelScore:
    """Score the run in real sandboxes. `reply`: timeout of each request in seconds."""
    run = RunFolder.open(folder)
    tokenizer, found = encode_held_out(folder)
    box, source, timeouts = get_driver("bubblewrap"), folder / "source", Timeouts(load=60, reply=reply)
    clients = [ModelProcessClient(run, box, model_source=source, timeouts=timeouts) for _ in range(2)]
    with clients[0] as probe, clients[1] as full:
        lengths, end = tokenizer.byte_lengths(), tokenizer.end_of_text
        return score_model(probe, full, found, lengths, end, lambda stage, fraction: None, random.Random(seed))


needs_sandbox = pytest.mark.skipif(
    bool(reason := get_driver("bubblewrap").find_problem()), reason=f"bubblewrap does not work here: {reason}"
)
