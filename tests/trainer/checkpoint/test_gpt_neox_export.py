"""Weights for transformers, made without torch, against litgpt's own conversion and transformers' own model."""

from __future__ import annotations

import dataclasses
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from litgpt import Config as OutsideConfig
from litgpt.scripts.convert_lit_checkpoint import copy_weights_gpt_neox
from safetensors.torch import load_file

from trainer.checkpoint import weight_files
from trainer.checkpoint.formats import FormatError, gpt_neox
from trainer.checkpoint.weight_files import list_weight_files, load_weights, write_weights
from trainer.models import litgpt

VOCABULARY = 300


@pytest.fixture(scope="module")
def model() -> litgpt.Model:
    torch.manual_seed(0)
    made = litgpt.Model(litgpt.Config(VOCABULARY, 32, "pythia-14m"))
    for parameter in made.parameters():  # random biases and norms, too, so that all tensors differ
        torch.nn.init.normal_(parameter, std=0.05)
    return made.eval()


def build_run_json(model: litgpt.Model) -> dict[str, Any]:
    return {"arch": "litgpt", "model": dataclasses.asdict(model.config)}


def convert(model: litgpt.Model, folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    out = folder / "out"
    out.mkdir()
    write_weights(folder, model.state_dict(), {})
    sources = {file.name: file for file in list_weight_files(folder)}
    config, index = gpt_neox.convert_weights(build_run_json(model), sources, out)
    assert {name: load_file(out / file)[name].shape for name, file in index["weight_map"].items()}
    return config, load_weights(out)


def test_conversion_equals_litgpts_without_padding(model: litgpt.Model, tmp_path: Path) -> None:
    _, ours = convert(model, tmp_path)
    lit = {name.replace("head.", "lm_head.", 1).removeprefix("gpt."): t for name, t in model.state_dict().items()}
    theirs: dict[str, torch.Tensor] = {}
    copy_weights_gpt_neox(model.config.to_litgpt(), theirs, lit)
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        kept = tensor[:VOCABULARY] if name in ("gpt_neox.embed_in.weight", "embed_out.weight") else tensor
        assert torch.equal(kept, ours[name]), name


@pytest.mark.parametrize("shard_bytes", [100_000, 10**9], ids=["shards", "one file"])
def test_transformers_model_gives_same_logits(
    model: litgpt.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_bytes: int
) -> None:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    monkeypatch.setattr(weight_files, "SHARD_BYTES", shard_bytes)
    config, weights = convert(model, tmp_path)
    assert (len(list_weight_files(tmp_path / "out")) > 1) == (shard_bytes < 10**9)
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
    write_weights(tmp_path, model.state_dict(), {})
    run = {"arch": "litgpt", "model": {"name": "pythia-14m", "vocabulary_size": 9000, "sequence_length": 32}}
    with pytest.raises(FormatError, match="has 320 rows"):
        gpt_neox.convert_weights(run, {"out": tmp_path / "model.safetensors"}, tmp_path)


@pytest.mark.parametrize("content", [b"", b"no weights", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]"])
def test_invalid_safetensors_file_is_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(content)
    run = {"arch": "litgpt", "model": {"name": "pythia-14m", "vocabulary_size": 9, "sequence_length": 9}}
    with pytest.raises(FormatError, match="not a safetensors file"):
        gpt_neox.convert_weights(run, {"out": tmp_path / "in"}, tmp_path)


@pytest.mark.parametrize("fields", [{"data_offsets": [8, 4]}, {"data_offsets": [-4, 0]}, {"data_offsets": [0, 400]}])
def test_safetensors_header_with_impossible_offsets_is_rejected(fields: dict[str, Any], tmp_path: Path) -> None:
    row = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **fields}
    header = json.dumps({"head.weight": row}).encode()
    (tmp_path / "in").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with (tmp_path / "in").open("rb") as file, pytest.raises(FormatError, match="not a safetensors file"):
        gpt_neox.read_header(file)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("gpt.transformer.wte.weight", (320,)), ("head.weight", ()), ("gpt.transformer.h.0.attn.qkv.bias", ())],
)
def test_tensor_without_needed_dimensions_is_rejected(
    model: litgpt.Model, tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    write_weights(tmp_path, {**model.state_dict(), name: torch.ones(shape)}, {})
    with pytest.raises(FormatError, match="not those of a GPT-NeoX"):
        gpt_neox.convert_weights(build_run_json(model), {"out": tmp_path / "model.safetensors"}, tmp_path)
