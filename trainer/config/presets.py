"""Named configurations: `dailytrain train --preset NAME`, or `preset = "NAME"` in a configuration file.

A preset's values are the weakest layer: a base checkpoint (`--from`), a file or a flag overrides them. Sizes that
`trainer.config.train_config` would compute are written out, so that a preset does not change with the rules; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.config.train_config import ConfigError


@dataclass(frozen=True)
class Preset:
    description: str  # shown by `dailytrain presets`
    values: Mapping[str, Any]  # names and values as in a configuration file, names of tables in front


def build_home_preset(description: str, depth: int, rows: int) -> Preset:
    """Return four hours on a card that people own, which has bf16. `rows` of 1,024 tokens fit its memory by
    `trainer.accounting.training_size`."""
    values = {
        "budget": "4h",
        "device": "cuda",
        "corpus": "fineweb-edu",
        "tokenizer": "bpe:32768",
        "limit_bytes": "4GiB",  # more text than the fastest of them reads
        "model.depth": depth,
        "train.sequence_length": 1024,
        "train.batch": 64,
        "train.micro_batch": rows,
        "train.precision": "bf16",
        "train.table_precision": "bf16",
        "train.evaluations": 10,
        "checkpoint_every": "10m",
    }
    return Preset(description, values)


RUN_PRESETS = {
    "daily-h100": Preset(
        "The nightly run: 24 hours on one H100 or H200, depth 24 at 524,288 tokens a step.",
        {
            # 3.4e19 FLOPs at 40 % of an H100's peak: depth 24 (0.7 B parameters) gets about 9 tokens a parameter there,
            # 13 at the 59 % that nanochat reaches.
            "budget": "24h",
            "device": "cuda",
            "corpus": "fineweb-edu",
            "tokenizer": "bpe:32768",
            "model.depth": 24,
            "train.sequence_length": 2048,
            "train.batch": 256,
            "train.micro_batch": 16,
            "train.precision": "bf16",
            "train.table_precision": "bf16",
            "train.evaluations": 48,
            "checkpoint_every": "15m",
        },
    ),
    "speedrun-h100": Preset(
        "Ten minutes on one H100 or H200, depth 10 at 262,144 tokens a step.",
        {
            # 2.4e17 FLOPs at 40 % of the peak: about 400 million tokens, or 2 GiB of English text.
            "budget": "10m",
            "device": "cuda",
            "corpus": "fineweb-edu",
            "tokenizer": "bpe:32768",
            "limit_bytes": "2GiB",
            "model.depth": 10,
            "train.sequence_length": 2048,
            "train.batch": 128,
            "train.micro_batch": 32,
            "train.precision": "bf16",
            "train.table_precision": "bf16",
            "train.evaluations": 10,
        },
    ),
    "gpu-8gb": build_home_preset("Four hours on a card of 8 GB, such as an RTX 4060: depth 8.", 8, 4),
    "gpu-12gb": build_home_preset("Four hours on a card of 12 GB, such as an RTX 3060: depth 10.", 10, 8),
    "gpu-16gb": build_home_preset("Four hours on a card of 16 GB, such as an RTX 4060 Ti: depth 12.", 12, 8),
    "gpu-24gb": build_home_preset("Four hours on a card of 24 GB, an RTX 3090 or 4090: depth 14.", 14, 16),
    "cpu-demo": Preset(
        "Three minutes on any machine: a small version of the nightly run.",
        {
            "budget": "3m",
            "device": "cpu",
            "corpus": "python-packages",
            "tokenizer": "bpe:8192",
            "limit_bytes": "16MiB",
            "model.depth": 3,
            "train.sequence_length": 256,
            "train.batch": 8,
            "train.precision": "fp32",
        },
    ),
    "cpu-ladder": Preset(
        "1e13 FLOPs on two cores, about two minutes, for comparing ideas.",
        {
            "budget": "1e13flops",
            "device": "cpu",
            "threads": 2,
            "corpus": "python-packages",
            "tokenizer": "bpe:8192",
            "limit_bytes": "16MiB",
            "model.depth": 2,
            "train.sequence_length": 256,
            "train.batch": 8,
            "train.precision": "fp32",
        },
    ),
    "finetune-1b5-2x24gb": Preset(
        "All weights of a model of 1.5 billion, from --from, on two GPUs of 24 GB: 65,536 tokens a step.",
        {
            # Each card holds half of the weights, of their gradients and of AdamW's momenta (16 bytes a parameter), and
            # gathers one block at a time; `trainer.accounting.training_size` adds up the rest.
            "budget": "50M-tokens",
            "device": "cuda",
            "devices": 2,
            "train.strategy": "fsdp",
            "train.activation_checkpointing": True,
            "train.precision": "bf16",
            "train.sequence_length": 2048,
            "train.batch": 32,
            "train.micro_batch": 1,
            "train.evaluations": 10,
            "recipe.clip": 1.0,
            "recipe.schedule.warmup": 0.03,
            "recipe.schedule.top": 0.1,
            "checkpoint_every": "15m",
        },
    ),
    "rwkv5-7b": Preset(
        "The long run: RWKV-5 of 7.5 billion parameters on eight GPUs of 80 GB, all 627 billion tokens of SlimPajama.",
        {
            # Each card holds an eighth of the weights, gradients and momenta (16 bytes a parameter: 15 GB). With zero2
            # it also holds all gathered weights from the forward to the backward pass: 30 GB, and 15 GB of bf16 copies.
            # Rates: those of the published run, 2e-4 falling to 1.47e-4.
            "arch": "rwkv5-7b",
            "budget": "627B-tokens",
            "device": "cuda",
            "devices": 8,
            "corpus": "slimpajama",
            "tokenizer": "world:rwkv_vocab_v20230424.txt",
            "train.strategy": "zero2",
            "train.activation_checkpointing": True,
            "train.precision": "bf16",
            "train.sequence_length": 4096,
            "train.batch": 256,
            "train.micro_batch": 1,
            "train.evaluations": 500,
            "recipe.matrices.learning_rate": 2e-4,
            "recipe.decay.learning_rate": 4e-4,
            "recipe.vectors.learning_rate": 2e-4,
            "recipe.schedule.warmup_steps": 10,
            "recipe.schedule.shape": "cosine",
            "recipe.schedule.final": 0.735,
            "recipe.clip": 1.0,
            "recipe.l2wrap": 1e-4,
            "checkpoint_every": "30m",
            "keep": 10,
        },
    ),
    "finetune-rwkv5-7b-128k": Preset(
        "Rows of 131,072 tokens for RWKV-5 of 7.5 billion parameters, from --from, on eight GPUs of 80 GB.",
        {
            # A row passes in chunks of 4,096 tokens, whose state is carried over, so memory is that of rows of 4,096.
            "budget": "500M-tokens",
            "device": "cuda",
            "devices": 8,
            "train.strategy": "zero2",
            "train.activation_checkpointing": True,
            "train.precision": "bf16",
            "train.sequence_length": 131_072,
            "train.chunk": 4096,
            "train.chunk_gradients": "truncated",
            "train.packing": "documents",
            "train.batch": 8,
            "train.micro_batch": 1,
            "train.evaluations": 10,
            "recipe.clip": 1.0,
            "recipe.schedule.warmup": 0.03,
            "recipe.schedule.top": 0.1,
            "checkpoint_every": "30m",
        },
    ),
    "tiny": Preset(
        "A few seconds: checks the installation and learns almost nothing.",
        {
            "budget": "50steps",
            "device": "cpu",
            "threads": 1,
            "corpus": "python-docs",
            "tokenizer": "bpe:512",
            "limit_bytes": "1MiB",
            "model.depth": 2,
            "train.sequence_length": 64,
            "train.batch": 4,
            "train.precision": "fp32",
            "train.dev_tokens": 1024,
            "train.sample_tokens": 8,
        },
    ),
}


def get_preset_values(name: str) -> Mapping[str, Any]:
    """Return a preset's names and values; raise `ConfigError` for an unknown name."""
    if name not in RUN_PRESETS:
        raise ConfigError(f"there is no preset {name!r}; the presets are {', '.join(RUN_PRESETS)}")
    return RUN_PRESETS[name].values
