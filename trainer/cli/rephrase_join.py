"""`dailytrain rephrase join --server URL`: rephrase texts for a site's campaigns, with a back end of yours.

The agent of `dailytrain node`, lent for one kind of job. No account is needed to try; with a token, which the site
shows to whoever signs in, what you do is credited to you.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.cli.node import DONE, REFUSED, TOKEN, USAGE, NodeError, alone, known, sentence
from trainer.cli.node import join as join_with_token
from trainer.cli.parser import Parser
from trainer.rephrase.backends import BackendError
from trainer.rephrase.flags import RephraseOffer, add_backend_flags, build_offer

if TYPE_CHECKING:
    from trainer.node.agent import Agent
    from trainer.node.identity import Identity


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 when asked to leave, 1 when the site refuses this volunteer, 2 for what the volunteer can mend."""
    options = parser().parse_args(argv)
    try:
        if not options.server.startswith(("http://", "https://")):
            raise NodeError(f"--server {options.server} is not an address: it begins with https:// (or http://).")
        options.home.mkdir(parents=True, exist_ok=True)
        with alone(options.home):
            brought = build_offer(options, default="vllm")
            assert brought is not None
            return run(options, brought)
    except (NodeError, BackendError, OSError) as error:
        sys.stderr.write(f"dailytrain rephrase join: {' '.join(str(error).split())}\n")
        return USAGE


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="dailytrain rephrase join", description="Rephrase texts for a site's campaigns.")
    add = made.add_argument
    add("--server", required=True, metavar="URL", help="the site, such as https://train.example.org")
    add("--token", default=os.environ.get(TOKEN), help=f"to be credited: from the site, once (or ${TOKEN})")
    add("--home", type=Path, default=find_home(), metavar="DIR", help="where it keeps its files (%(default)s)")
    add("--name", default=platform.node() or "volunteer", help="what the site shows (%(default)s)")
    add("--label", action="append", default=[], metavar="LABEL", help=argparse.SUPPRESS)
    add("--once", action="store_true", help="leave after one sitting")
    add_backend_flags(made.add_argument_group("what writes").add_argument)
    return made


def find_home() -> Path:
    if folder := os.environ.get("DAILYTRAIN_HOME"):
        return Path(folder) / "rephrase"
    return Path.home() / ".local" / "share" / "dailytrain" / "rephrase"


def run(options: argparse.Namespace, brought: RephraseOffer) -> int:
    # Here and not above: `--help` and a wrong flag answer at once.
    from trainer.node.agent import Agent, AgentStoppedError
    from trainer.node.client import RequestRefusedError, SiteClient
    from trainer.node.console import say
    from trainer.node.job_handlers import REPHRASE_KIND
    from trainer.sandbox import get_driver

    client = SiteClient(options.server, options.token or "")
    # No sandbox: nobody's code runs here.
    agent = Agent(client, options.home.absolute(), get_driver("none"), (), offer=brought, kinds=(REPHRASE_KIND,))
    path = options.home / "identity.json"
    try:
        with agent.listening():
            identity = known(path, client, options.token) or join(agent, options, path)
            agent.client = client.on_behalf(identity.token)
            agent.serve(identity, options.once)
    except AgentStoppedError:
        say("Leaving.")
    except RequestRefusedError as error:
        say(sentence(error.status, error.detail, path), "bold red")
        return REFUSED
    return DONE


def join(agent: Agent, options: argparse.Namespace, path: Path) -> Identity:
    """Join with the token, or without an account."""
    from trainer.node.console import say

    if options.token:
        return join_with_token(agent, options, path)
    identity = replace(agent.volunteer(options.name[:80]), joined_with="")
    identity.save(path)
    say(f"Joined {identity.server} as volunteer {identity.node}. To be credited, sign in there and give --token.")
    return identity
