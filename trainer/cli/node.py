"""`dailytrain node`: lend this machine to a site."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.accounting.budget import parse_size
from trainer.cli import Parser
from trainer.cli.join_site import NodeError, add_site_arguments, join_site
from trainer.errors import UserError
from trainer.node.network_args import add_network_args, parse_network_args
from trainer.rephrase.flags import add_backend_flags, build_offer, parse_count
from trainer.sandbox import DRIVERS, SandboxDriver, get_driver

if TYPE_CHECKING:
    from trainer.node.agent import Agent
    from trainer.node.client import SiteClient

COMMAND = "dailytrain node"


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)

    def build_agent(client: SiteClient, home: Path) -> Agent:
        from trainer.node.agent import Agent
        from trainer.node.job_handlers import describe_missing_extras

        sandbox = choose_sandbox(options.sandbox)
        network = parse_network_args(options)
        offer = build_offer(options)
        if missing := describe_missing_extras():
            sys.stderr.write(f"{COMMAND}: this machine {missing}\n")
        return Agent(
            client, home, sandbox, (sandbox.name,), options.slots, offer, network=network, disk_bytes=options.disk
        )

    return join_site(COMMAND, options, build_agent, can_volunteer=False)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=COMMAND, description=__doc__)
    add_site_arguments(
        parser,
        home="node",
        name="node",
        token_help="join token, needed the first time only",  # noqa: S106  (a help text)
        label_help="for jobs that need it; may be repeated",
        once_help="leave after one job",
    )
    add = parser.add_argument
    add("--sandbox", choices=sorted(DRIVERS), default="bubblewrap", help="how jobs are confined (%(default)s)")
    add("--disk", type=parse_disk, metavar="SIZE", help="for jobs and caches together, such as 500GB (what is free)")
    slot_count = partial(parse_count, minimum=1, maximum=64)
    add(
        "--slots",
        "--lanes",
        dest="slots",
        type=slot_count,
        metavar="N",
        help="jobs at a time, sharing GPUs and cores evenly (as the site says)",
    )
    add_backend_flags(parser.add_argument_group("rephrasing texts between jobs, with your own back end").add_argument)
    add_network_args(parser.add_argument_group("training one model with other machines (swarms)").add_argument)
    return parser


def parse_disk(text: str) -> int:
    """Return bytes; raise `argparse.ArgumentTypeError` for anything else."""
    try:
        return parse_size(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def choose_sandbox(name: str) -> SandboxDriver:
    """Return the driver; raise `NodeError` if it does not work here."""
    sandbox = get_driver(name)
    if (problem := sandbox.find_problem()) is not None:
        raise NodeError(f"{problem} Nothing runs without a sandbox unless you give --sandbox none.")
    if name == "none":
        from trainer.node.console import log

        log.warning("Jobs run WITHOUT A SANDBOX: only for your own code on your own machine.")
    return sandbox
