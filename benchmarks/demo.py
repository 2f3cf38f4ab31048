"""Train and score the demo's runs from graphs and store them for `manage.py seed_demo`: ten minutes of one core.

    python -m benchmarks.demo FOLDER [--jobs N]

It resumes: runs that FOLDER has are not repeated. Each trains on one thread, and its seconds are those of the CPU, so
that other work of the machine does not count. The runs are those of a small track: a ladder of the baseline,
architectures of this repository and a few changes of gpt, each with several seeds. All values in the file are measured;
curves are thinned to `POINTS`, numbers to six digits.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from trainer import train
from trainer.cli import score
from trainer.data.dataset import prepare_dataset
from trainer.protocol import GRAPH_FILES
from trainer.protocol.files import WEIGHTS_FILE, build_checkpoint_path

FIXTURE = Path(__file__).parent.parent / "leaderboard" / "fixtures" / "demo.json.gz"
WEIGHTS = FIXTURE.with_name("demo.safetensors")
POINTS = 60
BUDGET = 4e11
CORPUS, TOKENIZER = "python-docs", "bpe:1024"
SCORED_TOKENS, SUITE, SUITE_LIMIT = 8192, "blimp_sample", 6
SEQUENCE, EVALUATIONS, DEV_TOKENS, SAMPLE_TOKENS = 128, 4, 4096, 40
RUNGS = (0.25, 0.5, 1, 2)
FIRST, NIGHTS, CONFIRMING = (1, 2, 3), (4, 5), (11, 12, 13)
FORK = multiprocessing.get_context("fork")
COLUMNS = ("step", "fraction", "tokens", "flops", "seconds", "loss", "bits_per_byte", "learning_rate", "gradient_norm")
COLUMNS += ("tokens_per_second", "mfu", "memory_bytes")


@dataclass(frozen=True, kw_only=True)
class Idea:
    """An entry of the demo, in the order in which they came."""

    name: str
    title: str
    architecture: str
    hypothesis: str
    sha: str
    """A commit whose `trainer/` is the one that trained it; several, as one commit has one entry an architecture."""
    config: dict[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = (1, 2)
    nights: Sequence[int] = ()
    """More seeds, at the whole budget only."""
    confirming: Sequence[int] = ()
    rungs: Sequence[float] = (1,)

    @property
    def flags(self) -> list[str]:
        return [f"--{'.'.join(path)}={value}" for path, value in iterate_leaves(self.config)]


MAIN = "e936f6a49952b352a59dbd4064e0f2bb6814d170"
LATER = "fc5e0a80a1e632ad1eab121aa6bab50a6ef8d564"
IDEAS = (
    Idea(
        name="gpt", title="main", architecture="gpt", sha=MAIN, hypothesis="", seeds=FIRST, nights=NIGHTS, rungs=RUNGS
    ),
    Idea(
        name="nanogpt", title="GPT-2, as nanoGPT writes it", architecture="nanogpt", sha=LATER,
        hypothesis="How far has the baseline come from GPT-2?",
    ),
    Idea(
        name="rwkv5", title="RWKV-5", architecture="rwkv5", sha=LATER,
        hypothesis="A recurrence with a state of constant size, beside attention, at the same FLOPs.",
    ),
    Idea(
        name="smear", title="Smeared keys", architecture="smear", sha=LATER,
        hypothesis="A key mixed with the one before it finds induction patterns one block earlier.",
    ),
    Idea(
        name="gpt-memory", title="A memory of word pairs", architecture="gpt", confirming=CONFIRMING,
        sha="8b0edea5132bed7aa7185741eb7e83ce03f2f73a", config={"model": {"memory_rows": 4096, "memory_orders": "2"}},
        hypothesis="A table that the last two tokens look up, in every block: attention need not recall what follows.",
    ),
)  # fmt: skip


def iterate_leaves(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from iterate_leaves(value, (*path, name))
        else:
            yield (*path, name), value if isinstance(value, str) else json.dumps(value)


def list_trials(idea: Idea) -> Iterator[tuple[float, int]]:
    for part in sorted(idea.rungs, key=lambda part: part != 1):  # the full budget first, as on a track
        more = idea.nights if part == 1 else ()
        yield from ((part, seed) for seed in (*idea.seeds, *more, *idea.confirming))


def get_folder(root: Path, idea: Idea, part: float, seed: int) -> Path:
    return root / f"{idea.name}-{part:g}-{seed}"


def format_budget(part: float) -> str:
    return f"{BUDGET * part:g}flops".replace("e+", "e")


# --- training --------------------------------------------------------------------------------------------------------


def run_trial(root: Path, idea: Idea, part: float, seed: int, dataset: Path) -> None:
    out = get_folder(root, idea, part, seed)
    failure, answer = out / "failure.json", out / "score.partial"
    if not failure.is_file() and not (out / "result.json").is_file():
        flags = build_training_flags(idea, part, seed, dataset)
        run_in_child(train.main, [*flags, "--out", str(out)], Path(os.devnull), failure)
    if not failure.is_file() and not (out / "score.json").is_file():
        suite = ["--suite", SUITE, "--suite-limit", str(SUITE_LIMIT)] if part == 1 else []
        limits = ["--limit-tokens", str(SCORED_TOKENS), *suite]
        run_in_child(score.main, [str(out), "--dataset", str(dataset), *limits, "--json"], answer, failure)
        answer.rename(out / "score.json")


def build_training_flags(idea: Idea, part: float, seed: int, dataset: Path) -> list[str]:
    samples = SAMPLE_TOKENS if seed in (FIRST[0], CONFIRMING[0]) else 0
    return [
        *("--preset", "cpu-ladder", "--dataset", str(dataset), "--arch", idea.architecture),
        *("--budget", format_budget(part), "--seed", str(seed), "--threads", "1"),
        *(f"--train.sequence_length={SEQUENCE}", f"--train.evaluations={EVALUATIONS}"),
        *(f"--train.dev_tokens={DEV_TOKENS}", f"--train.sample_tokens={samples}"),
        *idea.flags,
    ]


def run_in_child(main: Callable[[Sequence[str]], int], arguments: Sequence[str], output: Path, failure: Path) -> None:
    """Run a command in a copy of this process, which has imported everything. It may fail if it leaves `failure`."""
    process = FORK.Process(target=run_by_cpu_clock, args=(main, arguments, output))
    process.start()
    process.join()
    if process.exitcode != 0 and not failure.is_file():
        raise SystemExit(f"{' '.join(arguments)} ended with {process.exitcode}")


def run_by_cpu_clock(main: Callable[[Sequence[str]], int], arguments: Sequence[str], output: Path) -> None:
    time.perf_counter = time.process_time
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        raise SystemExit(main(arguments))


# --- the file ---------------------------------------------------------------------------------------------------------


def describe_entry(root: Path, idea: Idea) -> dict[str, Any]:
    runs = [describe_run(root, idea, part, seed) for part, seed in list_trials(idea)]
    fields = {name: getattr(idea, name) for name in ("name", "title", "architecture", "hypothesis", "sha", "config")}
    return {**fields, "graph": describe_graph(get_folder(root, idea, 1, idea.seeds[0]) / "graph"), "runs": runs}


def describe_graph(folder: Path) -> dict[str, Any]:
    """Return a graph's files, what `dailytrain graph --json` prints of them, and the seconds that this took."""
    started = time.monotonic()
    summary = json.loads(subprocess.check_output([sys.executable, "-m", "trainer.cli", "graph", str(folder), "--json"]))
    seconds, files = time.monotonic() - started, {name: (folder / name).read_text() for name in GRAPH_FILES}
    return {"summary": summary, "seconds": shorten_number(seconds), "files": files}


def describe_run(root: Path, idea: Idea, part: float, seed: int) -> dict[str, Any]:
    folder = get_folder(root, idea, part, seed)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curves = {kind: [line for line in lines if line["kind"] == kind] for kind in ("train", "dev")}
    failed = (folder / "failure.json").is_file()
    outcome = json.loads((folder / ("failure.json" if failed else "score.json")).read_text())
    trained = datetime.fromtimestamp((folder / "metrics.jsonl").stat().st_mtime, UTC)
    return {
        "budget": format_budget(part),
        "seed": seed,
        "confirms": seed in idea.confirming,
        "trained_at": trained.isoformat(timespec="seconds"),
        "config": json.loads((folder / "run.json").read_text()),
        "failure" if failed else "score": outcome,
        "train": [get_columns(line) for line in thin_lines(curves["train"])],
        "dev": [get_columns(line) for line in curves["dev"]],
        "samples": [[line["step"], line["prompt"], line["text"]] for line in lines if line["kind"] == "sample"],
    }


def thin_lines(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most `POINTS` of the lines, evenly, the first and the last among them."""
    if len(lines) <= POINTS:
        return lines
    return [lines[round(i * (len(lines) - 1) / (POINTS - 1))] for i in range(POINTS)]


def get_columns(line: dict[str, Any]) -> list[Any]:
    return [shorten_number(line.get(name)) for name in COLUMNS]


def shorten_number(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write_weights(root: Path) -> dict[str, Any]:
    """Write the final weights of the last idea's best run as bf16; return which run it is."""
    idea = IDEAS[-1]
    folders = {seed: get_folder(root, idea, part, seed) for part, seed in list_trials(idea)}
    scores = {seed: json.loads((folder / "score.json").read_text()) for seed, folder in folders.items()}
    seed = min(scores, key=lambda seed: float(scores[seed]["bits_per_byte"]))
    checkpoint = folders[seed] / build_checkpoint_path(scores[seed]["step"])
    tensors = load_file(checkpoint / WEIGHTS_FILE)
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, WEIGHTS)
    return {"title": idea.title, "seed": seed}


def hash_release() -> dict[str, Any]:
    """Return hash and size of the release that trained the runs."""
    tar = subprocess.run(
        ["git", "archive", "--format=tar", LATER, "trainer"], stdout=subprocess.PIPE, check=True
    ).stdout
    return {"sha256": hashlib.sha256(tar).hexdigest(), "size": len(tar)}


def describe_machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpus": os.cpu_count(), "memory_bytes": memory, "gpus": [], "sandboxes": ["bubblewrap"]}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args(argv)
    root, dataset = options.folder, prepare_dataset(CORPUS, TOKENIZER, progress=True)
    root.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs, mp_context=FORK) as pool:
        trials = [(root, idea, part, seed, dataset.folder) for idea in IDEAS for part, seed in list_trials(idea)]
        for done in [pool.submit(run_trial, *trial) for trial in trials]:
            done.result()
    content = {
        "season": {
            "corpus": CORPUS, "tokenizer": TOKENIZER, "limit_bytes": None, "dataset_hash": dataset.hash,
            "test_tokens": SCORED_TOKENS,
            "vocabulary_size": dataset.manifest["tokenizer"]["vocabulary_size"],
        },
        "budget": format_budget(1),
        "config": {
            "threads": 1,
            "model": {"depth": 2},
            "train": {"sequence_length": SEQUENCE, "batch": 8, "precision": "fp32"},
        },
        "ladder": {"rungs": list(RUNGS), "seeds": len(FIRST)},
        "suite": [SUITE],
        "suite_limit": SUITE_LIMIT,
        "columns": COLUMNS,
        "release": hash_release(),
        "machine": describe_machine(),
        "entries": [describe_entry(root, idea) for idea in IDEAS],
    }  # fmt: skip
    content["weights"] = write_weights(root)
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    FIXTURE.write_bytes(gzip.compress(text, mtime=0))
    sys.stdout.write(f"{FIXTURE}: {FIXTURE.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
