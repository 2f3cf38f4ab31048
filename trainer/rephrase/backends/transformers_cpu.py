"""transformers on the CPU, for small models: starts `trainer.rephrase.serve`."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import AbstractContextManager

from trainer.rephrase.backends.endpoint import EndpointClient
from trainer.rephrase.backends.protocol import BackendConfig, BackendContext
from trainer.rephrase.backends.server import check_model_name, run_server

DEFAULT_PARALLEL = 8  # prompts per batch


def choose_parallel(context: BackendContext) -> int:
    return DEFAULT_PARALLEL


def find_problem(config: BackendConfig) -> str:
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed: pip install 'dailytrain[rephrase,training]'."
    if not config.model:
        return "Only small models are fast enough on a CPU: name one with --model."
    return ""


def list_models(config: BackendConfig) -> tuple[str, ...] | None:
    return (config.model,)


def open_client(
    config: BackendConfig, model: str, revision: str, context: BackendContext
) -> AbstractContextManager[EndpointClient]:
    return run_server(lambda port: build_command(config, model, revision, port), model, context, "transformers")


def build_command(config: BackendConfig, model: str, revision: str, port: int) -> list[str]:
    """Return the command line. Raise `BackendError` for a malformed model name."""
    check_model_name(model, revision)
    command = [sys.executable, "-m", "trainer.rephrase.serve"]
    command += ["--model", config.weights or model, "--served-as", model, "--port", str(port)]
    command += ["--revision", revision] if revision and not config.weights else []
    command += ["--context", str(config.context), "--batch", str(config.parallel or DEFAULT_PARALLEL)]
    return [*command, *config.flags]
