"""A seat of a site's run: a worker by an order, that tells how it is doing.

    python -m trainer.swarm.attend --order ORDER.json --folder DIR --out OUT

`OUT/status.json` is what the volunteer sees, renewed each second; `OUT/metrics.jsonl` what the site does, less often.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.checkpoint.json_files import atomic_write_json
from trainer.cli.parser import Parser
from trainer.protocol import SeatOrder
from trainer.swarm import wire
from trainer.swarm.chaos import Chaos
from trainer.swarm.heap import keep_freed
from trainer.swarm.transport import Transport
from trainer.swarm.worker import Worker

STATUS = "status.json"
LOOK_SECONDS = 1.0
TELL_SECONDS = 10.0
NAME = 8
"""Letters of a peer's name that are told."""


async def attend(order: SeatOrder, args: argparse.Namespace) -> str:
    """Be there until the run is over, and return why it is."""
    transport = Transport(args.folder)
    host, _, port = args.listen.rpartition(":")
    relays = order.coordinator if args.behind_nat else ()
    await transport.start(host, int(port), args.announce, listen=not args.behind_nat, relays=relays)
    peer = order.coordinator[0].rpartition("/p2p/")[2]
    hello = wire.Hello(run=str(order.run), label=order.label, credential=order.credential)
    worker = Worker(transport, order.coordinator[0], hello, Chaos.of(None), args.device)
    transport.know(peer, [address.removesuffix(f"/p2p/{peer}") for address in order.coordinator])
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, worker.leave)
    telling = asyncio.ensure_future(tell(worker, args.out))
    try:
        await worker.serve()
    finally:
        telling.cancel()
        atomic_write_json(args.out / STATUS, status(worker) | {"why": worker.why})
        await transport.close()
        worker.lane.shutdown(cancel_futures=True)
    return worker.why


async def tell(worker: Worker, out: Path) -> None:
    """Write down how it is, again and again."""
    told = -TELL_SECONDS
    while True:
        now = status(worker)
        atomic_write_json(out / STATUS, now)
        if now["stage"] is not None and time.monotonic() - told >= TELL_SECONDS:
            told = time.monotonic()
            about = {name: now[name] for name in ("step", "stage", "tokens_per_second", "bytes_in", "bytes_out")}
            with (out / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"kind": "seat", **about}) + "\n")
        if worker.hello.addresses == () and worker.seat is None:
            await worker.transport.refresh_addresses()  # a relay's comes some seconds after the start
        await asyncio.sleep(LOOK_SECONDS)


def status(worker: Worker) -> dict[str, Any]:
    """Return how a seat is: stage, step, speed, bytes, and who belongs to the run beside it."""
    seat = worker.seat
    stage = seat.stage if seat is not None else None
    members = worker.members.stages
    mine = stage.index if stage is not None and worker.is_member(worker.transport.peer) else None
    names = [[peer.name[-NAME:] for peer in peers] for peers in members]
    return {
        "me": worker.transport.peer[-NAME:],
        "stage": mine,
        "stages": seat.config.stages if seat is not None else None,
        "step": stage.version if stage is not None else 0,
        "steps": seat.config.steps if seat is not None else None,
        "arch": seat.config.arch if seat is not None else "",
        "tokens_per_second": seat.throughput if seat is not None else None,
        "bytes_in": worker.transport.bytes_in,
        "bytes_out": worker.transport.bytes_out,
        "members": names,
        "leaving": worker.hello.leaving,
    }


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    keep_freed()
    order = SeatOrder.model_validate_json(args.order.read_bytes())
    print(asyncio.run(attend(order, args)))  # noqa: T201
    return 0


def parser() -> Parser:
    flags = Parser(prog="python -m trainer.swarm.attend", description="Take a seat of a site's swarm.")
    flags.add_argument("--order", required=True, type=Path, help="the site's, JSON")
    flags.add_argument("--folder", required=True, type=Path, help="this seat's own: its key")
    flags.add_argument("--out", required=True, type=Path, help="folder for what it tells")
    flags.add_argument("--device", default="cpu")
    flags.add_argument("--listen", default="0.0.0.0:0", help="host:port that other peers can reach")
    flags.add_argument("--announce", action="append", default=[], help="address that others should use instead")
    flags.add_argument("--behind-nat", action="store_true", help="nobody can dial this machine")
    return flags


if __name__ == "__main__":
    sys.exit(main())
