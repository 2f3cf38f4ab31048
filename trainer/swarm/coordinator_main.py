"""The coordinator's process, without a site.

python -m trainer.swarm.coordinator_main --out RUN --dataset DATASET --config config.json --listen 0.0.0.0:7000
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.data.dataset import Dataset
from trainer.errors import ModelError, UserError, to_one_line
from trainer.swarm import rebalance
from trainer.swarm.config import SwarmConfig
from trainer.swarm.coordinator import Coordinator, CoordinatorOptions
from trainer.swarm.data import Batches
from trainer.swarm.fault_injection import FaultInjector
from trainer.swarm.frames import PeerUnreachableError
from trainer.swarm.journal import Journal
from trainer.swarm.transport import Transport

LISTEN_ATTEMPTS = 20


async def run_coordinator(args: argparse.Namespace) -> None:
    config = SwarmConfig.model_validate_json(args.config.read_bytes())
    batches = Batches(Dataset.open(args.dataset), config)
    transport = await start_transport(args, args.serve_as_relay)
    options = CoordinatorOptions(
        timeout=args.timeout,
        peers=args.peers,
        rebalance_seconds=args.rebalance_every,
        evaluation_interval=args.evaluate_every,
        required_members=dict(map(int, wait.split(":")) for wait in args.wait_for),
    )
    faults = FaultInjector.from_json(args.faults)
    try:
        await run_until_signal(Coordinator(args.out, batches, transport, options, faults=faults))
    finally:
        await transport.close()


async def run_until_signal(coordinator: Coordinator) -> None:
    """Train until the run ends, or until SIGINT or SIGTERM and the end of the current step."""
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, coordinator.stop)
    await coordinator.train()


async def start_transport(args: argparse.Namespace, serve_as_relay: bool) -> Transport:
    """Return a transport at the requested address. Retry while a killed process may still hold the port.

    Raise `RunLockedError` first if the run has another coordinator, before anything is visible from outside.
    """
    Journal(args.out).close()
    host, _, port = args.listen.rpartition(":")
    for attempt in range(LISTEN_ATTEMPTS):
        transport = Transport(args.out)
        try:
            await transport.start(host, int(port), args.announce, serves_as_relay=serve_as_relay)
            return transport
        except PeerUnreachableError:
            await transport.close()
            if attempt + 1 == LISTEN_ATTEMPTS:
                raise
            await asyncio.sleep(0.25)
    raise AssertionError


def add_network_arguments(parser: argparse.ArgumentParser, listen: str) -> None:
    parser.add_argument("--listen", default=listen, help="host:port that other peers can reach")
    parser.add_argument("--announce", action="append", default=[], help="address that other peers should use instead")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.swarm.coordinator_main", description="Coordinate a swarm run."
    )
    parser.add_argument("--out", required=True, type=Path, help="the run's folder: journal, checkpoints, key")
    parser.add_argument("--dataset", required=True, type=Path, help="a prepared dataset")
    parser.add_argument("--config", required=True, type=Path, help="the run's configuration, JSON")
    add_network_arguments(parser, "127.0.0.1:0")
    parser.add_argument(
        "--serve-as-relay", action="store_true", help="relay connections to peers that cannot be dialed"
    )
    parser.add_argument("--peers", type=int, default=0, help="members to wait for before the first step")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds after which a silent peer is evicted")
    parser.add_argument("--rebalance-every", type=float, default=rebalance.REBALANCE_SECONDS, help="seconds")
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps; 0: never")
    parser.add_argument("--faults", help=argparse.SUPPRESS)
    parser.add_argument("--wait-for", action="append", default=[], help=argparse.SUPPRESS)  # STEP:MEMBERS
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    try:
        asyncio.run(run_coordinator(args))
    except (UserError, ModelError, OSError, PeerUnreachableError) as error:
        print(to_one_line(error), file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
