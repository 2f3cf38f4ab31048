"""vLLM: starts its OpenAI-compatible server on the GPUs of this slot, with options for these cards.

The options change the outputs only by the rounding of fp16, on cards without bf16. The owner's `--backend-flags` come
last, so they win.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from trainer.rephrase.backends.endpoint import EndpointClient
from trainer.rephrase.backends.protocol import BackendConfig, BackendContext
from trainer.rephrase.backends.server import check_model_name, run_server

DEFAULT_PARALLEL = 64  # prompts at a time for each 12 GB of GPU memory, or for a card of unknown size
PARALLEL_BYTES = 12e9
MAX_PARALLEL = 512  # threads of the session, each with one prompt
PROMPT_LOOKUP_WORDS = 4  # longest n-gram that speculative decoding searches in the prompt
WITHOUT_BF16 = re.compile(
    r"\b(?:GTX|MX\d{3}|TITAN (?:X|Xp|V|RTX)|RTX 20[5678]0|Quadro (?:RTX|[PTM]\d{3,4})|T\d{3,4}|[PTV]4|P40|P100|V100)\b",
    re.IGNORECASE,
)
"""Cards below compute capability 8, on which vLLM refuses models in bf16."""
PROGRAM = "vllm"


def choose_parallel(context: BackendContext) -> int:
    """Return the prompts at a time of all cards together."""
    return min(MAX_PARALLEL, choose_sequences(context) * (len(context.gpus) if is_data_parallel(context) else 1))


def find_problem(config: BackendConfig) -> str:
    if find_program() is None:
        return "vLLM is not installed: pip install 'dailytrain[rephrase,vllm]', or name a server with --endpoint."
    return ""


def list_models(config: BackendConfig) -> tuple[str, ...] | None:
    return (config.model,) if config.model else None


def open_client(
    config: BackendConfig, model: str, revision: str, context: BackendContext
) -> AbstractContextManager[EndpointClient]:
    return run_server(lambda port: build_command(config, model, revision, port, context), model, context, "vllm")


def build_command(config: BackendConfig, model: str, revision: str, port: int, context: BackendContext) -> list[str]:
    """Return the command line. Raise `BackendError` for a malformed model name."""
    check_model_name(model, revision)
    command = [find_program() or PROGRAM, "serve", config.weights or model, "--served-model-name", model]
    command += ["--revision", revision] if revision and not config.weights else []
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(config.context)]
    return [*command, *choose_options(context), *config.flags]


def choose_options(context: BackendContext) -> list[str]:
    """Return the options for the slot's cards and the campaign's speculative decoding."""
    options = ["--max-num-seqs", str(choose_sequences(context))]
    if len(context.gpus) > 1:
        # Copies need no exchange between the cards. A model that needs several cards is split.
        kind = "--data-parallel-size" if is_data_parallel(context) else "--tensor-parallel-size"
        options += [kind, str(len(context.gpus))]
    options += ["--dtype", "half"] if any(WITHOUT_BF16.search(gpu.name) for gpu in context.gpus) else []
    if context.speculative_tokens:
        tokens = context.speculative_tokens
        lookup = {"method": "ngram", "num_speculative_tokens": tokens, "prompt_lookup_max": PROMPT_LOOKUP_WORDS}
        options += ["--speculative-config", json.dumps(lookup)]
    return options


def is_data_parallel(context: BackendContext) -> bool:
    """Return whether each card serves a whole copy of the model."""
    needed = (context.needs_gigabytes or float("inf")) * 1e9
    return len(context.gpus) > 1 and all(gpu.memory_bytes >= needed for gpu in context.gpus)


def choose_sequences(context: BackendContext) -> int:
    """Return the prompts at a time of one copy of the model, by the memory of its cards."""
    sizes = [gpu.memory_bytes for gpu in context.gpus]
    memory = min(sizes, default=0) if is_data_parallel(context) else sum(sizes)
    return min(MAX_PARALLEL, DEFAULT_PARALLEL * max(1, int(memory / PARALLEL_BYTES)))


def find_program() -> str | None:
    """Return the path of the vllm command: next to this Python, or on PATH."""
    return shutil.which(PROGRAM, path=Path(sys.executable).parent) or shutil.which(PROGRAM)
