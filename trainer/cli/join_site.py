"""Shared by `dailytrain node`, `swarm join` and `rephrase join`: register at a site and serve it."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.accounting.budget import parse_size
from trainer.errors import ExitCode, UserError, print_error

if TYPE_CHECKING:
    from trainer.node.agent import Agent
    from trainer.node.client import RequestRefusedError, SiteClient
    from trainer.node.identity import Identity

MIN_UPLOAD_RATE = 100_000  # bytes per second
TOKEN_VARIABLE = "DAILYTRAIN_JOIN_TOKEN"  # noqa: S105  (the variable's name)


class NodeError(UserError):
    """The agent cannot start. The message is a sentence for the sponsor."""


def add_site_arguments(
    parser: argparse.ArgumentParser,
    home: str,
    once_help: str,
    name: str = "volunteer",
    token_help: str = "token from the site, to get credit; needed once",  # noqa: S107  (a help text)
    label_help: str = argparse.SUPPRESS,
) -> None:
    """Add the arguments of all three commands; the defaults are a volunteer's.

    `home`: the default folder's name; `name`: for hosts without one.
    """
    add = parser.add_argument
    add("--server", required=True, metavar="URL", help="the site, such as https://train.example.org")
    add("--token", default=os.environ.get(TOKEN_VARIABLE), help=f"{token_help} (or ${TOKEN_VARIABLE})")
    default_home = get_default_home(home)
    add("--home", type=Path, default=default_home, metavar="DIR", help="where it keeps its files (%(default)s)")
    add("--name", default=platform.node() or name, help="what the site shows (%(default)s)")
    add("--label", action="append", default=[], metavar="LABEL", help=label_help)
    add("--upload-rate", type=parse_rate, metavar="RATE", help="bytes per second for uploads, such as 20MB (no limit)")
    add("--once", action="store_true", help=once_help)


def parse_rate(text: str) -> int:
    """Return bytes per second; raise `argparse.ArgumentTypeError` for anything else."""
    try:
        rate = parse_size(text.removesuffix("/s"))
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if rate < MIN_UPLOAD_RATE:
        raise argparse.ArgumentTypeError(f"{text} is too slow: give {MIN_UPLOAD_RATE // 1000}kB or more")
    return rate


def get_default_home(name: str) -> Path:
    if folder := os.environ.get("DAILYTRAIN_HOME"):
        return Path(folder) / name
    return Path.home() / ".local" / "share" / "dailytrain" / name


def join_site(
    command: str,
    options: argparse.Namespace,
    build_agent: Callable[[SiteClient, Path], Agent],
    can_volunteer: bool = True,
) -> int:
    """Register, or reuse the identity of an earlier start, and serve the site; return the exit code.

    `build_agent`: called with the client and the home folder; `can_volunteer`: a token is optional. The exit code is 0
    after a requested stop, 1 if the site refuses this node, 2 for errors that the sponsor can fix.
    """
    from filelock import FileLock, Timeout  # imported here, so that `--help` is fast

    try:
        if not options.server.startswith(("http://", "https://")):
            raise NodeError(f"--server {options.server} is not an address: it must start with https:// (or http://).")
        options.home.mkdir(parents=True, exist_ok=True)
        with FileLock(options.home / "agent.lock", blocking=False):
            return serve_site(options, build_agent, can_volunteer)
    except Timeout:
        message = f"Another agent is working in {options.home}. Stop it, or use another --home for this one."
        return print_error(command, message, ExitCode.USER_ERROR)
    except (UserError, OSError) as error:
        return print_error(command, error, ExitCode.USER_ERROR)


def serve_site(
    options: argparse.Namespace, build_agent: Callable[[SiteClient, Path], Agent], can_volunteer: bool
) -> int:
    from trainer.node.agent import AgentStoppedError
    from trainer.node.client import RequestRefusedError, SiteClient, UploadRate
    from trainer.node.console import configure_logging, log
    from trainer.node.hardware import describe_gpus
    from trainer.node.slot_loops import run_slots

    configure_logging()
    client = SiteClient(options.server, options.token or "", upload_rate=UploadRate(options.upload_rate))
    agent = build_agent(client, options.home.absolute())
    for line in describe_gpus(agent.gpu_monitor.reader):
        log.info(line)
    path = options.home / "identity.json"
    try:
        with agent.handle_signals():
            identity = load_identity(path, agent.client.server, options.token)
            run_slots(agent, identity or register(agent, options, path, can_volunteer), options.once)
    except AgentStoppedError:
        log.info("Leaving.")
    except RequestRefusedError as error:
        log.error(describe_refusal(error, path))
        return ExitCode.INFRASTRUCTURE
    return ExitCode.OK


def load_identity(path: Path, server: str, token: str | None) -> Identity | None:
    """Return this node's identity; None if it has to register, as with a new token.

    Raise `NodeError` if it belongs to another site.
    """
    from trainer.node.identity import Identity, hash_join_token

    identity = Identity.load(path)
    if identity is not None and identity.server != server:
        raise NodeError(f"This node belongs to {identity.server}. Give another --home to join {server} as well.")
    if identity is not None and token and identity.joined_with not in ("", hash_join_token(token)):
        return None  # the owner created a new token for this node
    return identity


def register(agent: Agent, options: argparse.Namespace, path: Path, can_volunteer: bool) -> Identity:
    """Register with the token, or as a volunteer without an account."""
    from trainer.node.console import log
    from trainer.node.identity import hash_join_token

    name: str = options.name[:80]
    if options.token:
        identity = agent.join(name, tuple(options.label))
        identity = replace(identity, joined_with=hash_join_token(options.token))
        message = f"Joined {identity.server} as node {identity.node}, {options.name}."
    elif can_volunteer:
        identity = agent.join_as_volunteer(name)
        message = f"Joined {identity.server} as volunteer {identity.node}."
        message += " To be credited, sign in there and give --token."
    else:
        raise NodeError("This node has not joined yet: start it once with --token and the token that the site showed.")
    identity.save(path)
    log.info(message)
    return identity


def describe_refusal(error: RequestRefusedError, identity: Path) -> str:
    """Return the message for a site that rejects the node."""
    if error.status in (401, 403) and identity.exists():
        return f"The site rejects this node: {error.detail} To join again, start it with a new token."
    return f"The site rejects this node: {error.detail}"
