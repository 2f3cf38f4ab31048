"""`dailytrain swarm join --server URL --run ID`: train one model together with other people's machines.

The agent of `dailytrain node`, lent for the seats of one run. No account is needed to try; with a token, which the site
shows to whoever signs in, what this machine does is credited to you.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.cli.node import DONE, REFUSED, TOKEN, USAGE, NodeError, alone, known, sentence
from trainer.cli.parser import Parser
from trainer.node import network_args


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 when asked to leave, 1 when the site refuses this volunteer, 2 for what the volunteer can mend."""
    options = parser().parse_args(argv)
    try:
        if not options.server.startswith(("http://", "https://")):
            raise NodeError(f"--server {options.server} is not an address: it begins with https:// (or http://).")
        if not network_args.is_swarm_installed():
            raise NodeError("the engine is missing here: pip install 'dailytrain[training,swarm]'")
        options.home.mkdir(parents=True, exist_ok=True)
        with alone(options.home):
            return run(options)
    except (NodeError, network_args.NetworkArgsError, OSError) as error:
        sys.stderr.write(f"dailytrain swarm join: {' '.join(str(error).split())}\n")
        return USAGE


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="dailytrain swarm join", description="Train one model together with other people's machines.")
    add = made.add_argument
    add("--server", required=True, metavar="URL", help="the site, such as https://train.example.org")
    add("--run", required=True, type=int, metavar="ID", help="the run, as in the address of its page")
    add("--token", default=os.environ.get(TOKEN), help=f"to be credited: from the site, once (or ${TOKEN})")
    add("--home", type=Path, default=home(), metavar="DIR", help="where it keeps its files (%(default)s)")
    add("--name", default=platform.node() or "volunteer", help="what the site shows (%(default)s)")
    add("--label", action="append", default=[], metavar="LABEL", help=argparse.SUPPRESS)
    add("--once", action="store_true", help="leave after one seat")
    network_args.add_network_args(made.add_argument_group("how others reach this machine").add_argument)
    return made


def home() -> Path:
    if folder := os.environ.get("DAILYTRAIN_HOME"):
        return Path(folder) / "swarm"
    return Path.home() / ".local" / "share" / "dailytrain" / "swarm"


def run(options: argparse.Namespace) -> int:
    # Here and not above: `--help` and a wrong flag answer at once.
    from trainer.cli.rephrase_join import join
    from trainer.node.agent import Agent, AgentStoppedError
    from trainer.node.client import RequestRefusedError, SiteClient
    from trainer.node.console import say
    from trainer.sandbox import get_driver

    client = SiteClient(options.server, options.token or "")
    # No sandbox: a seat runs the site's own code, and needs the network.
    agent = Agent(
        client,
        options.home.absolute(),
        get_driver("none"),
        (),
        kinds=("seat",),
        reach=network_args.parse_network_args(options),
        swarm_run=options.run,
    )
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
