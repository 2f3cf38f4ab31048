"""`dailytrain swarm local`: train with a swarm of processes on this machine, with injected faults.

    dailytrain swarm local --stages 2 --workers 2 --steps 60 --corpus files:PATH --chaos kill --json

With `--workers 1` it is a plain pipeline. `--out` keeps checkpoints: the same command resumes a run that was
interrupted, and its result is a run that `dailytrain sample` and the other commands read.

The result is compared to one process that does the same work, except with `--no-compare`. Exits with 0 if all losses
agree within 1e-4 (with `--wire fp32`), every (step, stage, micro-batch) was held exactly once at its commit, the
replicas of each stage were equal at every version, and no process was left running.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from trainer.accounting.budget import parse_size
from trainer.cli import Parser
from trainer.config.presets import get_preset_values
from trainer.data.dataset import Dataset, prepare_dataset
from trainer.errors import ExitCode, UserError, print_error
from trainer.models import load_architecture
from trainer.swarm.checkpoint import assemble_run
from trainer.swarm.comparison import ComparisonResult, compare_with_single_process
from trainer.swarm.config import WIRES, SwarmConfig
from trainer.swarm.fault_plans import FAULT_PLANS
from trainer.swarm.journal import JournalLine, read_journal
from trainer.swarm.local_swarm import SwarmStuckError
from trainer.swarm.partitions import get_partition

SIZES = ("tokenizer", "model.depth", "train.sequence_length", "train.batch")  # that a preset must set
RESULT_FIELDS = ("max_abs_loss_difference", "steps", "kills", "exact_cover", "hashes_equal")


def build_config(args: argparse.Namespace, dataset: Dataset) -> SwarmConfig:
    """Return the run's configuration: the preset's sizes, with at least one block per stage."""
    values = get_preset_values(args.preset)
    length = int(values["train.sequence_length"])
    get_partition(args.arch)  # raises PartitionError for an architecture without one
    depth = max(int(values["model.depth"]), args.stages)
    model = load_architecture(args.arch).Config.sized(depth, dataset.tokenizer.vocabulary_size, length)
    return SwarmConfig(
        arch=args.arch,
        model=dict(vars(model)),
        stages=args.stages,
        steps=args.steps,
        seed=args.seed,
        micro_batch=max(1, int(values["train.batch"]) // 4),
        micro_batches=args.micro_batches,
        wire=args.wire,
        sequence_length=length,
        checkpoint_every=max(1, min(50, args.steps // 4)),
    )


def build_parser() -> Parser:
    parser = Parser(prog="dailytrain swarm local", description="Train with a swarm of processes on this machine.")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2, help="per stage")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--arch", default="gpt")
    parser.add_argument("--preset", default="tiny", help="preset of the sizes: a line of `dailytrain presets`")
    parser.add_argument("--corpus", required=True, help="for example files:PATH")
    parser.add_argument("--micro-batches", type=int, default=8, help="per step")
    parser.add_argument("--wire", choices=WIRES, default="fp32", help="how hidden states are sent; only fp32 is exact")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--chaos", choices=FAULT_PLANS, default="none", help="faults to inject")
    parser.add_argument("--timeout", type=float, default=3.0, help="seconds after which a silent peer is evicted")
    parser.add_argument("--seconds", type=float, default=900, help="time limit of the whole run")
    parser.add_argument("--no-compare", dest="compare", action="store_false", help="do not compare with one process")
    parser.add_argument("--out", type=Path, help="folder for journal, checkpoints and logs; resumes a run in it")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that all is cleaned up
    try:
        if min(args.stages, args.workers, args.steps, args.micro_batches) < 1:
            raise UserError("--stages, --workers, --steps and --micro-batches must be at least 1")
        return run(args)
    except (UserError, OSError, SwarmStuckError) as error:
        code = ExitCode.INFRASTRUCTURE if isinstance(error, SwarmStuckError) else ExitCode.USER_ERROR
        return print_error("dailytrain swarm local", error, code)
    finally:
        signal.signal(signal.SIGTERM, previous)


def run(args: argparse.Namespace) -> int:
    values = dict(get_preset_values(args.preset))
    missing = [name for name in SIZES if name not in values]
    if missing:
        raise UserError(f"preset {args.preset} sets no {missing[0]}: choose another, such as tiny")
    started = time.monotonic()
    journal = read_journal(args.out) if args.out is not None else []
    has_ended = any(line["kind"] == "end" for line in journal[-1:])
    if has_ended and (args.out / "run.json").exists():
        raise UserError(f"the run in {args.out} has ended: `dailytrain sample {args.out}` reads it")
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:
        path = Path(folder) / "dataset"
        limit = parse_size(str(values.get("limit_bytes", "1GiB")))
        dataset = prepare_dataset(args.corpus, str(values["tokenizer"]), path, limit)
        config = build_config(args, dataset)

        def assemble(lines: Sequence[JournalLine]) -> None:
            if args.out is not None:
                assemble_run(args.out, config, dataset, seconds=sum_seconds(lines))

        if has_ended:  # and was interrupted before its checkpoint was assembled
            assemble(journal)
            print(f"{args.out} is complete now: `dailytrain sample {args.out}` reads it", file=sys.stderr)  # noqa: T201
            return 0
        result, lines = compare_with_single_process(
            config, path, args.workers, args.chaos, args.timeout, args.seconds, args.out, args.compare, assemble
        )
    if args.json:
        print(json.dumps({name: getattr(result, name) for name in RESULT_FIELDS}))  # noqa: T201
    summary = format_result(result, lines, time.monotonic() - started)
    print(summary, file=sys.stderr if args.json else sys.stdout)
    for command in result.leftovers:
        print(f"dailytrain swarm local: still running: {command}", file=sys.stderr)  # noqa: T201
    return 0 if result.is_passed(args.steps) else 1


def sum_seconds(lines: Sequence[JournalLine]) -> float:
    """Return the training time of all steps, also of those that were repeated."""
    return sum(line["seconds"] for line in lines if line["kind"] == "commit")


def format_result(result: ComparisonResult, lines: Sequence[JournalLine], seconds: float) -> str:
    count = {kind: sum(line["kind"] == kind for line in lines) for kind in ("join", "leave", "move", "rollback")}
    difference = result.max_abs_loss_difference
    compared = "not compared" if difference is None else f"{difference:.1e}"
    return (
        f"{result.steps} steps in {seconds:.0f} s; {result.kills} processes killed, {count['join']} joins, "
        f"{count['leave']} leaves, {count['move']} moves, {count['rollback']} rollbacks\n"
        f"largest loss difference from one process: {compared}\n"
        f"every micro-batch held exactly once: {result.exact_cover}; replicas equal: {result.hashes_equal}"
        + ("" if result.has_happened else "\nthe run ended before all planned faults happened: use more steps")
    )


if __name__ == "__main__":
    sys.exit(main())
