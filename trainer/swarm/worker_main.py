"""A worker's process.

    python -m trainer.swarm.worker_main --order ORDER.json --home DIR --out OUT
    python -m trainer.swarm.worker_main --coordinator /ip4/.../tcp/.../p2p/... --home DIR

With a site's order it writes `OUT/status.json` for the volunteer every second, and `OUT/metrics.jsonl` for the site
every ten seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from trainer.checkpoint.files import atomic_write_json
from trainer.distributed.devices import select_device
from trainer.errors import UserError
from trainer.ops.devices import keep_freed_memory
from trainer.protocol import WorkerOrder
from trainer.swarm import messages
from trainer.swarm.coordinator_main import add_network_arguments
from trainer.swarm.fault_injection import FaultInjector
from trainer.swarm.frames import PeerUnreachableError
from trainer.swarm.transport import PEER_SUFFIX, Transport
from trainer.swarm.worker import Worker

STATUS_FILE = "status.json"
STATUS_SECONDS = 1.0
METRICS_SECONDS = 10.0


async def run_worker(args: argparse.Namespace) -> str:
    """Serve until the run is over, and return why it ended."""
    if args.order is not None:
        order = WorkerOrder.model_validate_json(args.order.read_bytes())
        coordinator = order.coordinator
        hello = messages.Hello(label=order.label, credential=order.credential)
    else:
        coordinator = (args.coordinator,)
        hello = messages.Hello(label=args.name, preferred_stage=args.preferred_stage)
    transport = Transport(args.home)
    host, _, port = args.listen.rpartition(":")
    relays = coordinator if args.behind_nat else ()
    await transport.start(host, int(port), args.announce, listen=not args.behind_nat, relays=relays)
    faults, device = FaultInjector.from_json(args.faults), select_device(args.device, devices=1)
    worker = Worker(transport, coordinator, hello, faults, device)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, worker.leave)
    try:
        async with report_status(worker, args.out):
            await worker.serve()
    finally:
        await transport.close()
        worker.executor.shutdown(cancel_futures=True)
    return worker.reason


@contextlib.asynccontextmanager
async def report_status(worker: Worker, out: Path | None) -> AsyncIterator[None]:
    """Write the status and metrics in the background, and at the end why the worker stopped."""
    if out is None:
        yield
        return
    reporting = asyncio.ensure_future(write_status(worker, out))
    try:
        yield
    finally:
        reporting.cancel()
        atomic_write_json(out / STATUS_FILE, build_status(worker) | {"why": worker.reason})


async def write_status(worker: Worker, out: Path) -> None:
    last_metrics = -METRICS_SECONDS
    while True:
        status = build_status(worker)
        atomic_write_json(out / STATUS_FILE, status)
        if status["stage"] is not None and time.monotonic() - last_metrics >= METRICS_SECONDS:
            last_metrics = time.monotonic()
            row = {name: status[name] for name in ("step", "stage", "tokens_per_second", "bytes_in", "bytes_out")}
            with (out / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"kind": "seat", **row}) + "\n")
        if worker.hello.addresses == () and worker.state is None:
            await worker.transport.refresh_addresses()  # a relay's address is known some seconds after the start
        await asyncio.sleep(STATUS_SECONDS)


def build_status(worker: Worker) -> dict[str, Any]:
    """Return the worker's stage, step, speed and traffic, and the members of the run."""
    state, transport = worker.state, worker.transport
    stage = state.stage if state is not None else None
    return {
        "me": transport.peer[-PEER_SUFFIX:],
        "stage": stage.index if stage is not None and worker.is_member(transport.peer) else None,
        "stages": state.config.stages if state is not None else None,
        "step": stage.version if stage is not None else 0,
        "steps": state.config.steps if state is not None else None,
        "arch": state.config.arch if state is not None else "",
        "tokens_per_second": state.throughput if state is not None else None,
        "bytes_in": transport.bytes_in,
        "bytes_out": transport.bytes_out,
        "members": [[peer.name[-PEER_SUFFIX:] for peer in peers] for peers in worker.members.stages],
        "leaving": worker.hello.leaving,
    }


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer.swarm.worker_main", description="Work in a swarm run.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--order", type=Path, help="the site's order, JSON")
    source.add_argument("--coordinator", help="the coordinator's address: /ip4/.../tcp/.../p2p/...")
    parser.add_argument("--home", required=True, type=Path, help="this worker's own folder, with its key")
    parser.add_argument("--out", type=Path, help="folder for status and metrics")
    parser.add_argument("--name", default="", help="name of this machine, without an order")
    parser.add_argument("--preferred-stage", type=int, help="preferred stage, without an order")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="cpu", help="where to compute")
    add_network_arguments(parser, "127.0.0.1:0")
    parser.add_argument("--behind-nat", action="store_true", help="this machine cannot be dialed")
    parser.add_argument("--faults", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    keep_freed_memory(single_arena=True)
    try:
        print(asyncio.run(run_worker(args)))  # noqa: T201
    except (UserError, OSError, PeerUnreachableError) as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
