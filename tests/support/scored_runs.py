"""Run folders like those of training, with a small `gpt` of random weights, and a text to score."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from trainer.data.corpora import Document
from trainer.data.tokenizer_training import train_bpe
from trainer.models import gpt
from trainer.models.base import LanguageModel
from trainer.scoring.heldout_text import EncodedDocument
from trainer.scoring.model_scorer import ModelScorer
from trainer.scoring.text_score import TextScore, score_text

LENGTH, VOCABULARY = 32, 300
FIELDS = {"depth": 2, "width": 16, "heads": 2, "end_of_text": 0}


def words(seed: int, count: int) -> str:
    """Return random text from a vocabulary of 200 words."""
    rng = random.Random(7)
    vocabulary = ["".join(rng.choices("aeioulnrst", k=rng.randint(2, 7))) for _ in range(200)]
    return " ".join(random.Random(seed).choices(vocabulary, k=count)) + ".\n"


def documents(count: int = 12) -> list[Document]:
    return [Document(str(i), words(i, 20 + 10 * i)) for i in range(count)]


def build_gpt(vocabulary: int = VOCABULARY) -> LanguageModel:
    """Return a model whose predictions differ from position to position."""
    torch.manual_seed(5)
    model = gpt.Model(gpt.Config(vocabulary, LENGTH, **FIELDS))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def write_run(folder: Path, arch: str = "gpt") -> Path:
    """Write a run's folder; `arch`: the name in `run.json`."""
    folder.mkdir(parents=True)
    tokenizer = train_bpe([document.text for document in documents()], VOCABULARY)
    tokenizer.save(folder / "tokenizer.json")
    config = {"vocabulary_size": tokenizer.vocabulary_size, "sequence_length": LENGTH, **FIELDS}
    run = {"format": 1, "arch": arch, "model": config, "dataset": {"tokenizer_sha256": tokenizer.sha256}}
    (folder / "run.json").write_text(json.dumps(run))
    write_checkpoint(folder / "checkpoints" / "step-00000010", build_gpt(tokenizer.vocabulary_size))
    return folder


def write_checkpoint(folder: Path, model: torch.nn.Module) -> None:
    folder.mkdir(parents=True)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
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


class CharacterTokenizer:
    """A token for each character."""

    end_of_text = 0

    def encode(self, text: str) -> list[int]:
        return [min(ord(character), 127) for character in text]


def build_scorer(model: torch.nn.Module, length: int = LENGTH) -> ModelScorer:
    return ModelScorer(model, torch.device("cpu"), length)


def make_texts(vocabulary: int, documents: int = 60, longest: int = 3 * LENGTH) -> list[EncodedDocument]:
    """Return random tokens of one byte each."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, longest, size=documents)
    return [EncodedDocument(rng.integers(0, vocabulary, size=n), int(n)) for n in lengths]


def score_tokens(scorer: ModelScorer, texts: list[EncodedDocument], seed: int = 1) -> TextScore:
    """Score texts of `make_texts`. The model is used as the untrained one, too."""
    ones = np.ones(scorer.vocabulary_size, np.int64)
    return score_text(scorer, scorer, texts, ones, 0, lambda *_: None, rng=np.random.default_rng(seed))
