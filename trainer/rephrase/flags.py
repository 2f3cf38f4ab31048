"""Command-line options of rephrasing back ends, shared by `dailytrain rephrase join` and `dailytrain node`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from trainer.rephrase.backends import BACKENDS, BackendConfig, BackendError, load_backend

API_KEY_VARIABLE = "DAILYTRAIN_ENDPOINT_KEY"


@dataclass(frozen=True)
class RephraseOffer:
    """The back end and models that a node offers for rephrasing."""

    backend: BackendConfig
    models: tuple[str, ...] | None  # models it can serve, by the campaigns' names; None: any
    campaign: str = ""  # the only campaign it accepts; empty: any


def add_backend_flags(add: Callable[..., Any]) -> None:
    kinds = ", ".join(BACKENDS)
    add("--backend", choices=sorted(BACKENDS), help=f"what generates text: {kinds} (endpoint if --endpoint is given)")
    add("--endpoint", default="", metavar="URL", help="a server with OpenAI's API, up to and including /v1")
    add("--model", default="", metavar="NAME", help="accept only campaigns with this model")
    add("--served-as", default="", metavar="NAME", help="the endpoint's name of that model (the same)")
    add("--weights", default="", metavar="DIR", help="local folder of that model (downloaded from the Hub)")
    prompt_count = partial(parse_count, minimum=1, maximum=1024)
    add("--parallel", type=prompt_count, metavar="N", help="prompts at a time (the back end's default)")
    token_count = partial(parse_count, minimum=256, maximum=2**20)
    add("--context", type=token_count, default=4096, metavar="TOKENS", help="of prompt and output (%(default)s)")
    add("--backend-flags", default="", metavar="FLAGS", help="extra arguments for the server that is started")
    add("--campaign", default="", metavar="SLUG", help="accept only this campaign")


def parse_count(text: str, minimum: int, maximum: int) -> int:
    """Parse a number within limits; raise `ArgumentTypeError`."""
    if not text.isdigit() or not minimum <= int(text) <= maximum:
        raise argparse.ArgumentTypeError(f"{text} is not a number from {minimum} to {maximum}")
    return int(text)


def build_offer(options: argparse.Namespace, default: str = "") -> RephraseOffer | None:
    """Return what the options offer; None if they name no back end and there is no `default`.

    Raise `BackendError` for a configuration that cannot work, before the server assigns any packets.
    """
    kind = options.backend or ("endpoint" if options.endpoint else default)
    if not kind:
        return None
    if importlib.util.find_spec("py3langid") is None:
        raise BackendError("Rephrasing needs the package py3langid: pip install 'dailytrain[rephrase]'.")
    config = BackendConfig(
        kind,
        url=options.endpoint,
        model=options.model,
        served_as=options.served_as,
        weights=options.weights,
        api_key=os.environ.get(API_KEY_VARIABLE, ""),
        parallel=options.parallel,
        context=options.context,
        flags=tuple(shlex.split(options.backend_flags)),
    )
    if config.weights and not config.model:
        raise BackendError("--weights needs --model: the campaigns' name of these weights.")
    backend = load_backend(kind)
    if problem := backend.find_problem(config):
        raise BackendError(problem)
    return RephraseOffer(config, backend.list_models(config), options.campaign)
