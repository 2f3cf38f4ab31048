"""`dailytrain node`: lend this machine to a site."""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.cli.parser import Parser
from trainer.node import network_args
from trainer.rephrase.backends import BackendError
from trainer.rephrase.flags import add_backend_flags, build_offer
from trainer.sandbox import DRIVERS, SandboxDriver, get_driver

if TYPE_CHECKING:
    from trainer.node.agent import Agent
    from trainer.node.client import SiteClient
    from trainer.node.identity import Identity

TOKEN = "DAILYTRAIN_JOIN_TOKEN"  # noqa: S105  (the variable's name)
DONE, REFUSED, USAGE = 0, 1, 2
LANES = 64


class NodeError(ValueError):
    """The agent cannot start, in a sentence for the sponsor."""


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 when asked to leave, 1 when the site refuses this node, 2 for what the sponsor can mend."""
    options = parser().parse_args(argv)
    try:
        options.home.mkdir(parents=True, exist_ok=True)
        with alone(options.home):
            return run(options)
    except (NodeError, BackendError, network_args.NetworkArgsError, OSError) as error:
        print(f"dailytrain node: {error}", file=sys.stderr)  # noqa: T201
        return USAGE


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="dailytrain node", description=__doc__)
    add = made.add_argument
    add("--server", required=True, metavar="URL", help="the site, such as https://train.example.org")
    add("--token", default=os.environ.get(TOKEN), help=f"join token, needed the first time only (or ${TOKEN})")
    add("--home", type=Path, default=home(), metavar="DIR", help="where it keeps its files (%(default)s)")
    add("--name", default=platform.node() or "node", help="what the site shows (%(default)s)")
    add("--label", action="append", default=[], metavar="LABEL", help="for jobs that ask for it; may be repeated")
    add("--sandbox", choices=sorted(DRIVERS), default="bubblewrap", help="how jobs are confined (%(default)s)")
    add("--lanes", type=lanes, metavar="N", help="jobs at a time, sharing GPUs and cores evenly (as the site says)")
    add("--once", action="store_true", help="leave after one job")
    between = made.add_argument_group("rephrasing texts between jobs, with a back end of yours")
    add_backend_flags(between.add_argument)
    network_args.add_network_args(
        made.add_argument_group("training one model with other machines (swarms)").add_argument
    )
    return made


def lanes(word: str) -> int:
    if not word.isdigit() or not 1 <= int(word) <= LANES:
        raise argparse.ArgumentTypeError(f"{word} is not a number from 1 to {LANES}")
    return int(word)


def home() -> Path:
    if folder := os.environ.get("DAILYTRAIN_HOME"):
        return Path(folder) / "node"
    return Path.home() / ".local" / "share" / "dailytrain" / "node"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the node's folder; raise `NodeError` if another agent does."""
    with (folder / "agent.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise NodeError(
                f"Another agent is working in {folder}. Stop it, or give this one its own --home."
            ) from error
        yield


def run(options: argparse.Namespace) -> int:
    # Here and not above: `--help` and a wrong flag answer at once.
    from trainer.node.agent import Agent, AgentStoppedError
    from trainer.node.client import RequestRefusedError, SiteClient
    from trainer.node.console import say

    if not options.server.startswith(("http://", "https://")):
        raise NodeError(f"--server {options.server} is not an address: it begins with https:// (or http://).")
    sandbox, working = choose(options.sandbox)
    client = SiteClient(options.server, options.token or "")
    found = network_args.parse_network_args(options)
    agent = Agent(client, options.home.absolute(), sandbox, working, options.lanes, build_offer(options), reach=found)
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


def choose(name: str) -> tuple[SandboxDriver, tuple[str, ...]]:
    """Return the sandbox and the names of those that work here, that one first; `NodeError` if it does not."""
    sandbox = get_driver(name)
    if (reason := sandbox.find_problem()) is not None:
        raise NodeError(f"{reason} Nothing is run without a sandbox unless you ask for --sandbox none.")
    if name == "none":
        from trainer.node.console import say

        say("Jobs run WITHOUT A SANDBOX: only for your own code on your own machine.", "bold yellow")
    return sandbox, (name,)


def known(path: Path, client: SiteClient, token: str | None) -> Identity | None:
    """Return who this node is at this site; None if it has to join, as with a new token. `NodeError` if it belongs to
    another site."""
    from trainer.node.identity import Identity, IdentityError, hash_join_token

    try:
        identity = Identity.load(path)
    except IdentityError as error:
        raise NodeError(str(error)) from error
    if identity is not None and identity.server != client.server:
        raise NodeError(f"This node belongs to {identity.server}. Give another --home to join {client.server} as well.")
    if identity is not None and token and identity.joined_with not in ("", hash_join_token(token)):
        return None  # its owner asked the site for a new line
    return identity


def join(agent: Agent, options: argparse.Namespace, path: Path) -> Identity:
    from trainer.node.console import say
    from trainer.node.identity import hash_join_token

    if not options.token:
        raise NodeError("This node has not joined yet: start it once with --token and the token that the site showed.")
    joined = agent.join(options.name[:80], tuple(options.label))
    identity = replace(joined, joined_with=hash_join_token(options.token))
    identity.save(path)
    say(f"Joined {identity.server} as node {identity.node}, {options.name}.")
    return identity


def sentence(status: int, detail: str, identity: Path) -> str:
    """What a refusal of the whole node means for its sponsor."""
    if status in (401, 403) and identity.exists():
        return f"The site does not let this node in: {detail} To join anew, start it with a new token."
    return f"The site refuses: {detail}"
