"""Export a run of `litgpt`'s GPT-NeoX shapes to transformers: `config.json` and `model.safetensors` with its names.

Does what litgpt's `convert_lit_checkpoint.copy_weights_gpt_neox` does, on the file's bytes: it reorders rows, renames
tensors and changes no number. So the site can convert untrusted weights without torch and litgpt. Rows beyond the
vocabulary are never trained and left out.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trainer.checkpoint.formats import FormatError

HEADS = {
    "pythia-14m": 4,
    "pythia-31m": 8,
    "pythia-70m": 8,
    "pythia-160m": 12,
    "pythia-410m": 16,
    "pythia-1b": 8,
    "pythia-1.4b": 16,
    "pythia-2.8b": 32,
    "pythia-6.9b": 32,
    "pythia-12b": 40,
}
"""Attention heads of each configuration; everything else follows from the tensors (arXiv 2304.01373, table 1)."""
ALLOWED_FIELDS = {"padded_vocab_size"}  # litgpt's fields that may differ from those of the named configuration
MAX_HEADER_BYTES = 10**7
READ_BYTES = 2**22

LAYER = re.compile(r"gpt\.transformer\.h\.(\d+)\.(.+)\.(weight|bias)")
PARTS = {
    "norm_1": "input_layernorm",
    "norm_2": "post_attention_layernorm",
    "attn.qkv": "attention.query_key_value",
    "attn.proj": "attention.dense",
    "mlp.fc": "mlp.dense_h_to_4h",
    "mlp.proj": "mlp.dense_4h_to_h",
}
OUTER_TENSORS = {
    "gpt.transformer.wte.weight": "gpt_neox.embed_in.weight",
    "gpt.transformer.ln_f.weight": "gpt_neox.final_layer_norm.weight",
    "gpt.transformer.ln_f.bias": "gpt_neox.final_layer_norm.bias",
    "head.weight": "embed_out.weight",
}
TOKEN_TABLES = ("gpt.transformer.wte.weight", "head.weight")  # one row per token, then padding


@dataclass(frozen=True)
class SafetensorsEntry:
    """One tensor of a safetensors file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes from the end of the header
    end: int


def is_supported(run: Mapping[str, Any]) -> bool:
    """Return whether a run (`run.json`) has one of these shapes."""
    model = run.get("model")
    if run.get("arch") != "litgpt" or not isinstance(model, dict):
        return False
    fields = model.get("fields") or {}
    return model.get("name") in HEADS and isinstance(fields, dict) and fields.keys() <= ALLOWED_FIELDS


def convert_weights(
    run: Mapping[str, Any], sources: Mapping[str, Path], folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert safetensors files to ones of the same names in `folder`; return `config.json` and the index of shards.

    Raise `FormatError` for weights that do not have the run's shape.
    """
    assert is_supported(run)
    with ExitStack() as stack:
        files = {name: stack.enter_context(source.open("rb")) for name, source in sources.items()}
        headers = {name: read_header(file) for name, file in files.items()}
        try:
            config = build_config(run, [tensor for tensors, _ in headers.values() for tensor in tensors])
            renamed = {t.name: rename_tensor(t.name) for tensors, _ in headers.values() for t in tensors}
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise FormatError("these weights are not those of a GPT-NeoX") from error
        weight_map, total = {}, 0
        for name, (tensors, base) in headers.items():
            with (folder / name).open("wb") as out:
                total += convert_file(run, files[name], tensors, base, renamed, out)
            weight_map.update({renamed[tensor.name]: name for tensor in tensors})
    return config, {"metadata": {"total_size": total}, "weight_map": weight_map}


def convert_file(
    run: Mapping[str, Any],
    source: IO[bytes],
    tensors: list[SafetensorsEntry],
    base: int,
    renamed: Mapping[str, str],
    out: IO[bytes],
) -> int:
    """Convert one file, whose tensors begin at byte `base`; return the bytes of all tensors."""
    vocabulary, heads = int(run["model"]["vocabulary_size"]), HEADS[run["model"]["name"]]
    cropped = [crop_rows(tensor, vocabulary) if tensor.name in TOKEN_TABLES else tensor for tensor in tensors]
    write_header(cropped, renamed, out)
    for tensor in cropped:
        source.seek(base + tensor.begin)
        pieces = interleave_heads(source, tensor, heads) if ".attn.qkv." in tensor.name else read_pieces(source, tensor)
        for piece in pieces:
            out.write(piece)
    return sum(tensor.end - tensor.begin for tensor in cropped)


def read_header(file: IO[bytes]) -> tuple[list[SafetensorsEntry], int]:
    """Return the tensors of a safetensors file in file order, and the length of its header."""
    try:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > MAX_HEADER_BYTES:
            raise ValueError("its header is too long")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        entries = [
            SafetensorsEntry(name, str(row["dtype"]), tuple(map(int, row["shape"])), *map(int, row["data_offsets"]))
            for name, row in header.items()
        ]
        data_bytes = os.fstat(file.fileno()).st_size - 8 - length
        if any(not 0 <= entry.begin <= entry.end <= data_bytes or min(entry.shape, default=0) < 0 for entry in entries):
            raise ValueError("its tensors have sizes or places that no file can have")
    except (struct.error, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise FormatError("this is not a safetensors file") from error
    return sorted(entries, key=lambda tensor: tensor.begin), 8 + length


def build_config(run: Mapping[str, Any], tensors: list[SafetensorsEntry]) -> dict[str, Any]:
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    layers = {int(found[1]) for name in shapes if (found := LAYER.fullmatch(name))}
    (inner, width) = shapes["gpt.transformer.h.0.mlp.fc.weight"]
    if layers != set(range(len(layers))) or shapes["gpt.transformer.wte.weight"][1] != width:
        raise ValueError("inconsistent shapes")
    if () in shapes.values():
        raise ValueError("a GPT-NeoX has no scalars")
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": int(run["model"]["vocabulary_size"]),
        "max_position_embeddings": int(run["model"]["sequence_length"]),
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": len(layers),
        "num_attention_heads": HEADS[run["model"]["name"]],
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-05,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000,
        "use_parallel_residual": True,
        "attention_bias": True,
        "tie_word_embeddings": False,
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}[tensors[0].dtype],
        "use_cache": True,
    }


def rename_tensor(name: str) -> str:
    """Return transformers' name of a tensor; raise KeyError for one that GPT-NeoX does not have."""
    found = LAYER.fullmatch(name)
    if found is None:
        return OUTER_TENSORS[name]
    layer, part, kind = found.groups()
    return f"gpt_neox.layers.{layer}.{PARTS[part]}.{kind}"


def crop_rows(tensor: SafetensorsEntry, rows: int) -> SafetensorsEntry:
    count, *others = tensor.shape
    if count < rows:
        raise FormatError(f"{tensor.name} has {count} rows, and the vocabulary {rows} tokens")
    length = (tensor.end - tensor.begin) // count * rows
    return SafetensorsEntry(tensor.name, tensor.dtype, (rows, *others), tensor.begin, tensor.begin + length)


def write_header(tensors: list[SafetensorsEntry], names: Mapping[str, str], out: IO[bytes]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for tensor in tensors:
        end = begin + tensor.end - tensor.begin
        header[names[tensor.name]] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (begin, end)}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    out.write(struct.pack("<Q", len(text)) + text)


def read_pieces(file: IO[bytes], tensor: SafetensorsEntry) -> Iterator[bytes]:
    left = tensor.end - tensor.begin
    while left:
        piece = file.read(min(left, READ_BYTES))
        if not piece:
            raise FormatError(f"the file ends within {tensor.name}")
        left -= len(piece)
        yield piece


def interleave_heads(file: IO[bytes], tensor: SafetensorsEntry, heads: int) -> Iterator[bytes]:
    """Yield [q, q, ..., k, k, ..., v, v, ...], one of each for a head, as [q, k, v, q, k, v, ...]."""
    whole = b"".join(read_pieces(file, tensor))
    if tensor.shape[0] % (3 * heads):
        raise FormatError(f"{tensor.name} has {tensor.shape[0]} rows for {heads} heads")
    length = len(whole) // (3 * heads)
    for head in range(heads):
        for part in range(3):
            begin = (part * heads + head) * length
            yield whole[begin : begin + length]
