"""`dailytrain swarm join --server URL --run ID`: train one model together with other people's machines.

The agent of `dailytrain node`, lent for the seats of one run. An account is optional; with a token, which the site
shows to users who signed in, the work of this machine is credited to you.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.cli import Parser
from trainer.cli.join_site import NodeError, add_site_arguments, join_site
from trainer.node.network_args import add_network_args, parse_network_args

if TYPE_CHECKING:
    from trainer.node.agent import Agent
    from trainer.node.client import SiteClient

COMMAND = "dailytrain swarm join"


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)

    def build_agent(client: SiteClient, home: Path) -> Agent:
        from trainer.node.agent import Agent
        from trainer.node.job_handlers import list_missing_extras
        from trainer.sandbox import get_driver

        if "swarm" in list_missing_extras():
            raise NodeError("the engine is missing here: pip install 'dailytrain[training,swarm]'")
        # No sandbox: a worker runs the site's own code and needs the network.
        sandbox, network = get_driver("none"), parse_network_args(options)
        return Agent(client, home, sandbox, (), kinds=("seat",), network=network, swarm_run=options.run)

    return join_site(COMMAND, options, build_agent)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=COMMAND, description="Train one model together with other people's machines.")
    add_site_arguments(parser, home="swarm", once_help="leave after one job")
    parser.add_argument("--run", required=True, type=int, metavar="ID", help="the run, as in the address of its page")
    add_network_args(parser.add_argument_group("how others reach this machine").add_argument)
    return parser
