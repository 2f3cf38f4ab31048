"""A site's swarm run: the coordinator with an order's configuration, metrics for the site, and an ordinary run folder.

    python -m trainer.swarm.site_run --order ORDER.json --dataset DATASET --out RUN --listen 0.0.0.0:7000

Complete versions of the stages become checkpoints, from which another machine can resume. Exit codes: 0 after the last
step; 2 for an invalid configuration and 3 for a diverged model, both described in `failure.json`; 143 after a signal,
when the state has been saved.
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

import torch

from trainer.accounting import flops
from trainer.accounting.budget import Budget
from trainer.checkpoint.files import MANIFEST, atomic_write_json
from trainer.checkpoint.store import describe_file, get_checkpoint_path
from trainer.data.dataset import Dataset
from trainer.errors import DivergenceError, ExitCode, UserError, print_error, to_one_line, write_failure
from trainer.models import load_architecture
from trainer.protocol import Checkpoint, SwarmOrder, encode_message
from trainer.swarm import checkpoint
from trainer.swarm.config import SwarmConfig
from trainer.swarm.coordinator import Coordinator, CoordinatorOptions
from trainer.swarm.coordinator_main import add_network_arguments, run_until_signal, start_transport
from trainer.swarm.credentials import Admission
from trainer.swarm.data import Batches
from trainer.swarm.journal import JournalLine
from trainer.swarm.messages import Hello, SampleRequest
from trainer.swarm.metrics_reporter import MetricsReporter
from trainer.swarm.partitions import get_partition
from trainer.swarm.stage import build_model, partition_blocks
from trainer.swarm.stage_client import StageClient
from trainer.swarm.transport import Transport
from trainer.training.metrics import MetricsLogger, MetricsWriter, build_logger

STOPPED = 128 + signal.SIGTERM  # exit code
EVALUATIONS = 10  # Evaluations on dev, evenly over a run, the first before the first step
CHECKPOINTS = 10


def config_from_order(order: SwarmOrder, dataset: Dataset) -> SwarmConfig:
    """Return the configuration of all peers; raise `UserError` for one that cannot run as a swarm."""
    try:
        return build_config(order, dataset)
    except UserError:
        raise
    except ValueError as error:  # of the architecture's or the swarm's configuration
        raise UserError(to_one_line(error)) from error


def build_config(order: SwarmOrder, dataset: Dataset) -> SwarmConfig:
    train, model, swarm = (dict(order.config.get(name) or {}) for name in ("train", "model", "swarm"))
    get_partition(order.config["arch"])
    budget = Budget.parse(order.config["budget"])
    if budget.kind != "steps":
        raise UserError(f"a swarm's budget is a number of steps, such as 2000steps, not {order.config['budget']}")
    length = int(train.get("sequence_length", 256))
    count = int(swarm.setdefault("micro_batches", 8))
    swarm.setdefault("micro_batch", max(1, int(train.get("batch", 8 * count)) // count))
    swarm.setdefault("checkpoint_every", max(1, int(budget.amount) // CHECKPOINTS))
    vocabulary = dataset.tokenizer.vocabulary_size
    shape = load_architecture(order.config["arch"]).Config.sized(int(model.pop("depth", 4)), vocabulary, length)
    if unknown := sorted(model.keys() - {field.name for field in dataclasses.fields(shape)}):
        raise UserError(f"{order.config['arch']} has no {', '.join(unknown)}")
    shape = dataclasses.replace(shape, **model)
    fields = {
        "arch": order.config["arch"],
        "model": json.loads(json.dumps(dataclasses.asdict(shape))),
        "stages": order.stages,
        "steps": int(budget.amount),
        "seed": order.config["seed"],
        "sequence_length": length,
    }
    config = SwarmConfig.model_validate(swarm | fields)
    with torch.device("meta"):
        partition_blocks(config, build_model(config))  # raises PartitionError for too few blocks
    return config


class SiteRun:
    def __init__(self, order: SwarmOrder, out: Path, dataset: Dataset) -> None:
        self.order, self.out, self.dataset = order, out, dataset
        self.config = config_from_order(order, dataset)
        row = torch.zeros(1, self.config.sequence_length, dtype=torch.int64)
        self.flops_per_token = flops.count_flops(build_model(self.config), row)

    async def run(self, args: argparse.Namespace) -> int:
        """Run the coordinator to its end; return the exit code."""
        transport = await start_transport(args, serve_as_relay=True)
        logger = self.build_logger()
        try:
            with MetricsWriter(self.out / "metrics.jsonl", logger) as metrics:
                reporter = MetricsReporter(self.config, metrics, transport, self.flops_per_token)
                coordinator = self.build_coordinator(transport, reporter)
                reporter.report_address()
                await run_until_signal(coordinator)
                return self.write_result(coordinator, reporter)
        finally:
            await transport.close()

    def build_logger(self) -> MetricsLogger | None:
        """Return the external logger that the order names, if any, with the configuration logged.

        All coordinators of a run are one group.
        """
        name = str(self.order.config.get("logger", "none"))
        logger = build_logger(name, self.out, "swarm", f"run-{self.order.run}")
        if logger is not None:
            logger.log_hyperparams(self.config.model_dump(mode="json"))
        return logger

    def build_coordinator(self, transport: Transport, reporter: MetricsReporter) -> Coordinator:
        admission = Admission(self.order.secret)

        def admit(peer: str, hello: Hello) -> bool:
            return admission.admit(peer, hello.label, hello.credential, time.monotonic())

        def admit_sample(request: SampleRequest) -> bool:
            return admission.admit_sample(request.label, request.credential)

        def handle_line(line: JournalLine) -> None:
            reporter.report(line)
            if line["kind"] == "checkpoint":
                self.publish_checkpoint(line["step"])

        options = CoordinatorOptions(
            timeout=self.order.patience,
            peers=self.order.minimum * self.config.stages,
            evaluation_interval=max(1, self.config.steps // EVALUATIONS),
        )
        batches, client = Batches(self.dataset, self.config), StageClient(transport, reporter.report_temporary_ban)
        return Coordinator(
            self.out,
            batches,
            transport,
            options,
            first_stage=client,
            admit=admit,
            admit_sample=admit_sample,
            on_journal_line=handle_line,
        )

    def publish_checkpoint(self, version: int) -> None:
        """Link a complete version into a checkpoint folder, from which another machine can resume. The last version is
        assembled into one model instead."""
        if not 0 < version < self.config.steps:
            return
        folder, source = get_checkpoint_path(self.out, version), checkpoint.get_version_folder(self.out, version)
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(file for file in source.iterdir() if file.name.startswith("stage-"))
        for file in files:
            if not (folder / file.name).exists():
                os.link(file, folder / file.name)
        refs = tuple(describe_file(folder / file.name) for file in files)
        manifest = json.loads(encode_message(Checkpoint(step=version, files=refs)))
        atomic_write_json(folder / MANIFEST, manifest)

    def write_result(self, coordinator: Coordinator, reporter: MetricsReporter) -> int:
        """Assemble the model and write `result.json` if the run is complete; return the exit code."""
        if coordinator.version < self.config.steps:
            return STOPPED
        checkpoint.assemble_run(self.out, self.config, self.dataset, coordinator.version, seconds=reporter.seconds)
        usage = reporter.compute_usage(self.config.steps)
        result = {
            "step": self.config.steps,
            "steps": self.config.steps,
            "tokens": usage["tokens"],
            "train_flops": usage["flops"],
            "train_seconds": usage["seconds"],
            "final_loss": reporter.dev_loss,
        }
        atomic_write_json(self.out / "result.json", result)
        return ExitCode.OK


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    order = SwarmOrder.model_validate_json(args.order.read_bytes())
    try:
        return asyncio.run(SiteRun(order, args.out, Dataset.open(args.dataset)).run(args))
    except DivergenceError as error:
        write_failure(args.out, "model", str(error))
        return print_error("trainer.swarm.site_run", error, ExitCode.MODEL_ERROR)
    except UserError as error:
        write_failure(args.out, "order", str(error))
        return print_error("trainer.swarm.site_run", error, ExitCode.USER_ERROR)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.swarm.site_run", description="Coordinate a site's swarm run."
    )
    parser.add_argument("--order", required=True, type=Path, help="the site's order, JSON")
    parser.add_argument("--dataset", required=True, type=Path, help="a prepared dataset")
    parser.add_argument("--out", required=True, type=Path, help="the run's folder")
    add_network_arguments(parser, "0.0.0.0:0")
    return parser


if __name__ == "__main__":
    sys.exit(main())
