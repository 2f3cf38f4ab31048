"""`dailytrain rephrase join --server URL`: rephrase texts for a site's campaigns, with your own back end.

The agent of `dailytrain node`, lent for one kind of job. An account is optional; with a token, which the site shows to
users who signed in, your work is credited to you.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.cli import Parser
from trainer.cli.join_site import add_site_arguments, join_site
from trainer.rephrase.flags import add_backend_flags, build_offer

if TYPE_CHECKING:
    from trainer.node.agent import Agent
    from trainer.node.client import SiteClient

COMMAND = "dailytrain rephrase join"


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)

    def build_agent(client: SiteClient, home: Path) -> Agent:
        from trainer.node.agent import Agent
        from trainer.node.job_handlers import REPHRASE_KIND
        from trainer.sandbox import get_driver

        # No sandbox: no untrusted code runs.
        offer = build_offer(options, default="vllm")
        return Agent(client, home, get_driver("none"), (), offer=offer, kinds=(REPHRASE_KIND,))

    return join_site(COMMAND, options, build_agent)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog=COMMAND, description="Rephrase texts for a site's campaigns.")
    add_site_arguments(parser, home="rephrase", once_help="leave after one session")
    add_backend_flags(parser.add_argument_group("the back end").add_argument)
    return parser
