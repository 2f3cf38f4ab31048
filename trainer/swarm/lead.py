"""A swarm's run for a site: the coordinator with an order's configuration, what happens as metrics, and at the end an
ordinary run's folder.

    python -m trainer.swarm.lead --order ORDER.json --dataset DATASET --out RUN --listen 0.0.0.0:7000

Whole versions of the stages are laid out as checkpoints, from which another machine can go on. Ends with 0 when the
last step is made; 2 if the configuration cannot be run and 3 if the model diverged, both told in `failure.json`; 143
when it was asked to stop and has saved where it is.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.accounting import flops
from trainer.accounting.budget import Budget
from trainer.checkpoint import store as ordinary
from trainer.checkpoint.json_files import atomic_write_json
from trainer.checkpoint.store import MANIFEST, reference
from trainer.cli.parser import Parser
from trainer.data.dataset import Dataset
from trainer.models import load_architecture
from trainer.protocol import Checkpoint, SwarmOrder, encode_message
from trainer.swarm import checkpoint
from trainer.swarm.config import SwarmConfig
from trainer.swarm.coordinator import Coordinator, started
from trainer.swarm.credentials import Door
from trainer.swarm.cuts import cut_of
from trainer.swarm.data import Batches
from trainer.swarm.journal import Line
from trainer.swarm.stage import whole_model
from trainer.swarm.told import Told, Watched
from trainer.swarm.transaction import Diverged
from trainer.training.metrics import MetricsWriter, build_logger

DONE, CONFIGURATION, MODEL, STOPPED = 0, 2, 3, 143
EVALUATIONS = 10
"""On dev, evenly over a run, the first before the first step."""
CHECKPOINTS = 10


def config_of(order: SwarmOrder, dataset: Dataset) -> SwarmConfig:
    """Return what all peers agree on; raise ValueError, with one line, for what cannot be run as a swarm."""
    given = order.config
    train, model, own = (dict(given.get(name) or {}) for name in ("train", "model", "swarm"))
    cut_of(given["arch"])
    budget = Budget.parse(given["budget"])
    if budget.kind != "steps":
        raise ValueError(f"a swarm's budget is a number of steps, such as 2000steps, not {given['budget']}")
    length = int(train.get("sequence_length", 256))
    count = int(own.setdefault("micro_batches", 8))
    own.setdefault("micro_batch", max(1, int(train.get("batch", 8 * count)) // count))
    own.setdefault("checkpoint_every", max(1, int(budget.amount) // CHECKPOINTS))
    shape = load_architecture(given["arch"]).Config.sized(
        int(model.pop("depth", 4)), dataset.tokenizer.vocabulary_size, length
    )
    if unknown := sorted(model.keys() - {field.name for field in dataclasses.fields(shape)}):
        raise ValueError(f"{given['arch']} has no {', '.join(unknown)}")
    shape = dataclasses.replace(shape, **model)
    return SwarmConfig.model_validate(
        {
            **own,
            "arch": given["arch"],
            "model": json.loads(json.dumps(dataclasses.asdict(shape))),
            "stages": order.stages,
            "steps": int(budget.amount),
            "seed": given["seed"],
            "sequence_length": length,
        }
    )


class Lead:
    def __init__(self, order: SwarmOrder, out: Path, dataset: Dataset) -> None:
        self.order, self.out, self.dataset = order, out, dataset
        self.config = config_of(order, dataset)
        row = torch.zeros(1, self.config.sequence_length, dtype=torch.int64)
        self.per_token = flops.count_flops(whole_model(self.config), row).per_token

    async def run(self, args: argparse.Namespace) -> int:
        transport = await started(args)
        logger = build_logger(str(self.order.config.get("logger", "none")), self.out, f"run-{self.order.run}")
        try:
            with MetricsWriter(self.out / "metrics.jsonl", logger) as metrics:
                told = Told(self.config, metrics, transport, self.per_token)
                coordinator = self.coordinator(transport, told)
                for number in (signal.SIGINT, signal.SIGTERM):
                    asyncio.get_running_loop().add_signal_handler(number, coordinator.stop)
                told.address()
                await coordinator.train()
                return self.ended(coordinator, told)
        finally:
            await transport.close()

    def coordinator(self, transport: Any, told: Told) -> Coordinator:
        made = Coordinator(
            self.out,
            self.config,
            Batches(self.dataset, self.config),
            transport,
            patience=self.order.patience,
            peers=self.order.minimum * self.config.stages,
            evaluate_every=max(1, self.config.steps // EVALUATIONS),
        )
        door = Door(self.order.secret)
        made.membership.admits = lambda peer, hello: door.admits(peer, hello.label, hello.credential, time.monotonic())
        made.top = Watched(transport, told)

        def hear(line: Line) -> None:
            told.line(line)
            if line["kind"] == "checkpoint":
                self.lay_out(line["step"])

        made.journal.told = hear
        return made

    def lay_out(self, version: int) -> None:
        """Let a whole version be seen as a checkpoint, that another machine can go on from. The last one is joined
        instead."""
        if not 0 < version < self.config.steps:
            return
        folder, source = ordinary.path(self.out, version), checkpoint.folder_of(self.out, version)
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(file for file in source.iterdir() if file.name.startswith("stage-"))
        for file in files:
            if not (folder / file.name).exists():
                os.link(file, folder / file.name)
        refs = tuple(reference(folder / file.name) for file in files)
        atomic_write_json(folder / MANIFEST, json.loads(encode_message(Checkpoint(step=version, files=refs))))

    def ended(self, coordinator: Coordinator, told: Told) -> int:
        if coordinator.version < self.config.steps:
            return STOPPED
        checkpoint.assemble(self.out, self.config, self.dataset, coordinator.version, seconds=told.seconds)
        spent = told.spent(self.config.steps)
        atomic_write_json(
            self.out / "result.json",
            {
                "step": self.config.steps,
                "steps": self.config.steps,
                "tokens": spent["tokens"],
                "train_flops": spent["flops"],
                "train_seconds": spent["seconds"],
                "final_loss": told.dev,
            },
        )
        return DONE


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    order = SwarmOrder.model_validate_json(args.order.read_bytes())
    try:
        return asyncio.run(Lead(order, args.folder, Dataset.open(args.dataset)).run(args))
    except Diverged as error:
        return failed(args.folder, str(error), MODEL)
    except ValueError as error:
        return failed(args.folder, str(error), CONFIGURATION)


def failed(out: Path, reason: str, code: int) -> int:
    atomic_write_json(out / "failure.json", {"cause": "model", "reason": reason})
    print(reason, file=sys.stderr)  # noqa: T201
    return code


def parser() -> Parser:
    flags = Parser(prog="python -m trainer.swarm.lead", description="Lead a swarm's run for a site.")
    flags.add_argument("--order", required=True, type=Path, help="the site's, JSON")
    flags.add_argument("--dataset", required=True, type=Path, help="a prepared dataset")
    flags.add_argument("--out", dest="folder", required=True, type=Path, help="the run's folder")
    flags.add_argument("--listen", default="0.0.0.0:0", help="host:port that all peers can reach")
    flags.add_argument("--announce", action="append", default=[], help="address that peers should use instead")
    flags.set_defaults(serve_as_relay=True)
    return flags


if __name__ == "__main__":
    sys.exit(main())
