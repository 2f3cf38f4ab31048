"""The flags that say what a machine rephrases with: of `dailytrain rephrase join`, and of `dailytrain node`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainer.rephrase.backends import BACKENDS, BackEndError, Setup, back_end

KEY = "DAILYTRAIN_ENDPOINT_KEY"
PARALLEL = 1024


@dataclass(frozen=True)
class Offer:
    """What a machine that rephrases tells the site, and what its sittings work with."""

    setup: Setup
    models: tuple[str, ...] | None
    """Of campaigns, that it can write with; None: any."""
    campaign: str = ""
    """The only one that its owner wants to work for; empty: any."""


def add_flags(add: Callable[..., Any]) -> None:
    kinds = ", ".join(BACKENDS)
    add("--backend", choices=sorted(BACKENDS), help=f"what writes: {kinds} (endpoint if --endpoint is given)")
    add("--endpoint", default="", metavar="URL", help="a server that speaks OpenAI's protocol, up to and with /v1")
    add("--model", default="", metavar="NAME", help="work only for campaigns with this model")
    add("--served-as", default="", metavar="NAME", help="what the endpoint calls that model (the same)")
    add("--weights", default="", metavar="DIR", help="where that model lies here (it is fetched from the Hub)")
    add("--parallel", type=_parallel, metavar="N", help="prompts at a time (as is usual for the back end)")
    add("--context", type=_context, default=4096, metavar="TOKENS", help="of prompt and answer (%(default)s)")
    add("--backend-flags", default="", metavar="WORDS", help="more flags for the server that is started")
    add("--campaign", default="", metavar="SLUG", help="work only for this campaign")


def _parallel(word: str) -> int:
    if not word.isdigit() or not 1 <= int(word) <= PARALLEL:
        raise argparse.ArgumentTypeError(f"{word} is not a number from 1 to {PARALLEL}")
    return int(word)


def _context(word: str) -> int:
    if not word.isdigit() or not 256 <= int(word) <= 2**20:
        raise argparse.ArgumentTypeError(f"{word} is not a number of tokens, such as 4096")
    return int(word)


def offer(options: argparse.Namespace, default: str = "") -> Offer | None:
    """Return what the flags offer; None where they name no back end and there is no `default`.

    Raise `BackEndError` for what cannot work, before anybody is asked for packets.
    """
    kind = options.backend or ("endpoint" if options.endpoint else default)
    if not kind:
        return None
    if importlib.util.find_spec("py3langid") is None:
        raise BackEndError("To rephrase, this needs the package py3langid: pip install 'dailytrain[rephrase]'.")
    setup = Setup(
        kind,
        url=options.endpoint,
        model=options.model,
        served_as=options.served_as,
        weights=options.weights,
        key=os.environ.get(KEY, ""),
        parallel=options.parallel,
        context=options.context,
        flags=tuple(shlex.split(options.backend_flags)),
    )
    if setup.weights and not setup.model:
        raise BackEndError("--weights needs --model: the name that campaigns have for them.")
    chosen = back_end(kind)
    if reason := chosen.why_not(setup):
        raise BackEndError(reason)
    return Offer(setup, chosen.models(setup), options.campaign)
