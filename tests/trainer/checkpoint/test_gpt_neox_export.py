"""Weights for transformers, made without torch, against litgpt's own conversion and transformers' own model."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from litgpt import Config as OutsideConfig
from litgpt.scripts.convert_lit_checkpoint import copy_weights_gpt_neox
from safetensors.torch import load, save_file

from trainer.checkpoint.formats import FormatError, gpt_neox
from trainer.models import litgpt

VOCABULARY = 300


@pytest.fixture(scope="module")
def model() -> litgpt.Model:
    torch.manual_seed(0)
    made = litgpt.Model(litgpt.Config(VOCABULARY, 32, "pythia-14m"))
    for parameter in made.parameters():  # biases and norms, too, so that no two tensors can be mistaken
        torch.nn.init.normal_(parameter, std=0.05)
    return made.eval()


def build_run_json(model: litgpt.Model) -> dict[str, Any]:
    return {"arch": "litgpt", "model": dataclasses.asdict(model.config)}


def convert(model: litgpt.Model, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    save_file(model.state_dict(), folder / "ours.safetensors", metadata={"format": "pt"})
    out = io.BytesIO()
    with (folder / "ours.safetensors").open("rb") as source:
        config = gpt_neox.convert_weights(build_run_json(model), source, out)
    return config, load(out.getvalue())


def test_conversion_equals_litgpts_without_padding(model: litgpt.Model, tmp_path: Path) -> None:
    _, ours = convert(model, tmp_path)
    lit = {name.replace("head.", "lm_head.", 1).removeprefix("gpt."): t for name, t in model.state_dict().items()}
    theirs: dict[str, torch.Tensor] = {}
    copy_weights_gpt_neox(model.config.to_litgpt(), theirs, lit)
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        kept = tensor[:VOCABULARY] if name in ("gpt_neox.embed_in.weight", "embed_out.weight") else tensor
        assert torch.equal(kept, ours[name]), name


def test_transformers_model_gives_same_logits(model: litgpt.Model, tmp_path: Path) -> None:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config, weights = convert(model, tmp_path)
    theirs = GPTNeoXForCausalLM(GPTNeoXConfig(**config)).eval()
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    assert not unexpected
    assert not [name for name in missing if "rotary" not in name and "masked_bias" not in name]
    tokens = torch.randint(0, VOCABULARY, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.allclose(theirs(tokens).logits, model.logits(model.features(tokens)), atol=1e-5)


def test_heads_equal_litgpt_configurations() -> None:
    for name, heads in gpt_neox.HEADS.items():
        outside = OutsideConfig.from_name(name)
        assert (outside.n_head, outside.rotary_percentage, outside.parallel_residual) == (heads, 0.25, True), name


@pytest.mark.parametrize(
    "run",
    [
        {"arch": "gpt", "model": {"name": "pythia-14m"}},
        {"arch": "litgpt", "model": {"name": "Llama-3.2-1B", "fields": {}}},
        {"arch": "litgpt", "model": {"name": "pythia-14m", "fields": {"parallel_residual": False}}},
        {"arch": "litgpt", "model": "pythia-14m"},
        {},
    ],
)
def test_other_shapes_are_not_supported(run: dict[str, Any]) -> None:
    assert not gpt_neox.is_supported(run)


def test_too_large_vocabulary_is_rejected(model: litgpt.Model, tmp_path: Path) -> None:
    save_file(model.state_dict(), tmp_path / "ours.safetensors")
    run = {"arch": "litgpt", "model": {"name": "pythia-14m", "vocabulary_size": 9000, "sequence_length": 32}}
    with (tmp_path / "ours.safetensors").open("rb") as source, pytest.raises(FormatError, match="has 320 rows"):
        gpt_neox.convert_weights(run, source, io.BytesIO())


@pytest.mark.parametrize("content", [b"", b"no weights", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]"])
def test_invalid_safetensors_file_is_rejected(content: bytes) -> None:
    run = {"arch": "litgpt", "model": {"name": "pythia-14m", "vocabulary_size": 9, "sequence_length": 9}}
    with pytest.raises(FormatError, match="not a safetensors file"):
        gpt_neox.convert_weights(run, io.BytesIO(content), io.BytesIO())
