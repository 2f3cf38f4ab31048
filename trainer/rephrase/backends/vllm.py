"""vLLM: starts its OpenAI-compatible server on the GPUs of this slot."""

from __future__ import annotations

import shutil
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from trainer.rephrase.backends.endpoint import EndpointClient
from trainer.rephrase.backends.protocol import BackendConfig, BackendContext
from trainer.rephrase.backends.server import check_model_name, run_server

DEFAULT_PARALLEL = 64  # enough to keep vLLM's scheduler busy on a GPU with 12 GB
PROGRAM = "vllm"


def find_problem(config: BackendConfig) -> str:
    if find_program() is None:
        return "vLLM is not installed: pip install 'dailytrain[rephrase,vllm]', or name a server with --endpoint."
    return ""


def list_models(config: BackendConfig) -> tuple[str, ...] | None:
    return (config.model,) if config.model else None


def open_client(
    config: BackendConfig, model: str, revision: str, context: BackendContext
) -> AbstractContextManager[EndpointClient]:
    return run_server(lambda port: build_command(config, model, revision, port, context.gpus), model, context, "vllm")


def build_command(config: BackendConfig, model: str, revision: str, port: int, gpus: int) -> list[str]:
    """Return the command line. Raise `BackendError` for a malformed model name."""
    check_model_name(model, revision)
    command = [find_program() or PROGRAM, "serve", config.weights or model, "--served-model-name", model]
    command += ["--revision", revision] if revision and not config.weights else []
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(config.context)]
    command += ["--tensor-parallel-size", str(gpus)] if gpus > 1 else []
    return [*command, *config.flags]


def find_program() -> str | None:
    """Return the path of the vllm command: next to this Python, or on PATH."""
    return shutil.which(PROGRAM, path=Path(sys.executable).parent) or shutil.which(PROGRAM)
