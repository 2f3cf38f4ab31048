"""Train and score the demo's runs from graphs and store them for `manage.py seed_demo`: about half an hour of one core.

    python -m benchmarks.demo FOLDER

It resumes: runs that FOLDER has are not repeated. The runs are those of a small track: a ladder of the baseline,
architectures of this repository and a few changes of gpt, each with several seeds. All values in the file are measured;
curves are thinned to `POINTS`, numbers to six digits.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainer.data.dataset import prepare_dataset
from trainer.protocol import GRAPH_FILES

FIXTURE = Path(__file__).parent.parent / "leaderboard" / "fixtures" / "demo.json.gz"
POINTS = 60
BUDGET = 4e11
CORPUS, TOKENIZER, LIMIT_BYTES = "python-library", "bpe:1024", 8 * 2**20
SCORED_TOKENS, SUITE, SUITE_LIMIT = 40_000, "blimp_sample", 6
SEQUENCE, EVALUATIONS, DEV_TOKENS, SAMPLE_TOKENS = 128, 4, 4096, 40
RUNGS = (0.25, 0.5, 1, 2)
FIRST, CONFIRMING = (1, 2, 3), (11, 12, 13)
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
    seeds: Sequence[int] = FIRST
    confirming: Sequence[int] = ()
    rungs: Sequence[float] = (1,)

    @property
    def flags(self) -> list[str]:
        return [f"--{'.'.join(path)}={value}" for path, value in iterate_leaves(self.config)]


MAIN = "157c6dbed5ae354b062b3fcca52324e568fa8312"
LATER = "a2236386d2bb8fbcab4d33f16e0c6237a0f00a89"
IDEAS = (
    Idea(name="gpt", title="main", architecture="gpt", sha=MAIN, rungs=RUNGS, hypothesis=""),
    Idea(
        name="nanogpt", title="GPT-2, as nanoGPT writes it", architecture="nanogpt", sha=LATER,
        hypothesis="How far has the baseline come from GPT-2?",
    ),
    Idea(
        name="litgpt", title="Pythia, by litgpt", architecture="litgpt", sha=LATER, seeds=(1, 2),
        hypothesis="How far has the baseline come from GPT-NeoX as Pythia trained it?",
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
        name="gpt-nove", title="Without value embeddings", architecture="gpt", seeds=(1, 2),
        sha="b30876e6ab5858846c1b6925cdd520d53a243845", config={"model": {"value_embeddings": False}},
        hypothesis="A small vocabulary may not need a table of values in every block.",
    ),
    Idea(
        name="gpt-lr4", title="Twice the learning rate of the matrices", architecture="gpt", seeds=(1, 2),
        sha="8b997fe043908b6f192589667bcb64038cd90acd", config={"recipe": {"matrices": {"learning_rate": 0.04}}},
        hypothesis="A hundred steps are few: larger ones may go further.",
    ),
    Idea(
        name="gpt-nosmear", title="Without the embedding smear", architecture="gpt", seeds=(1, 2),
        sha="e63258bedda923a5256740e25504e854aa70b4e9", config={"model": {"embedding_smear": False}},
        hypothesis="At rows of 128 tokens attention should find the token before by itself.",
    ),
    Idea(
        name="gpt-w112", title="A narrower model, width 112", architecture="gpt", sha=LATER, seeds=(1, 2),
        confirming=CONFIRMING, config={"model": {"width": 112}},
        hypothesis="At so small a budget the model is too large: fewer weights, more steps.",
    ),
    Idea(
        name="gpt-w96", title="Narrower still, width 96", architecture="gpt", seeds=(1, 2), confirming=CONFIRMING,
        sha="0bfac199b452e75de3eb0b41a2363ae69be3046d", config={"model": {"width": 96}},
        hypothesis="The same once more.",
    ),
)  # fmt: skip


def iterate_leaves(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from iterate_leaves(value, (*path, name))
        else:
            yield (*path, name), json.dumps(value)


def list_trials(idea: Idea) -> Iterator[tuple[float, int]]:
    for part in sorted(idea.rungs, key=lambda part: part != 1):  # the full budget first, as on a track
        yield from ((part, seed) for seed in (*idea.seeds, *idea.confirming))


def get_folder(root: Path, idea: Idea, part: float, seed: int) -> Path:
    return root / f"{idea.name}-{part:g}-{seed}"


def format_budget(part: float) -> str:
    return f"{BUDGET * part:g}flops".replace("e+", "e")


# --- training --------------------------------------------------------------------------------------------------------


def run_trial(root: Path, idea: Idea, part: float, seed: int, dataset: Path) -> None:
    out = get_folder(root, idea, part, seed)
    failure = out / "failure.json"
    if not failure.is_file() and not (out / "result.json").is_file():
        run_module(
            "trainer.train", *build_training_flags(idea, part, seed, dataset), "--out", str(out), may_fail=failure
        )
    if not failure.is_file() and not (out / "score.json").is_file():
        suite = ["--suite", SUITE, "--suite-limit", str(SUITE_LIMIT)] if part == 1 else []
        limits = ["--limit-tokens", str(SCORED_TOKENS), *suite]
        answer = run_module("trainer.cli", "score", str(out), "--dataset", str(dataset), *limits, "--json")
        (out / "score.json").write_text(answer)


def build_training_flags(idea: Idea, part: float, seed: int, dataset: Path) -> list[str]:
    samples = SAMPLE_TOKENS if seed in (FIRST[0], CONFIRMING[0]) else 0
    return [
        *("--preset", "cpu-ladder", "--dataset", str(dataset), "--arch", idea.architecture),
        *("--budget", format_budget(part), "--seed", str(seed), "--threads", "1"),
        *(f"--train.sequence_length={SEQUENCE}", f"--train.evaluations={EVALUATIONS}"),
        *(f"--train.dev_tokens={DEV_TOKENS}", f"--train.sample_tokens={samples}"),
        *idea.flags,
    ]


def run_module(*command: str, may_fail: Path | None = None) -> str:
    """Return the output of a module of ours. It may fail if it leaves the file `may_fail`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True, env=environment)
    if process.returncode != 0 and not (may_fail and may_fail.is_file()):
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return process.stdout


# --- the file ---------------------------------------------------------------------------------------------------------


def describe_entry(root: Path, idea: Idea) -> dict[str, Any]:
    runs = [describe_run(root, idea, part, seed) for part, seed in list_trials(idea)]
    fields = {name: getattr(idea, name) for name in ("name", "title", "architecture", "hypothesis", "sha", "config")}
    return {**fields, "graph": describe_graph(get_folder(root, idea, 1, idea.seeds[0]) / "graph"), "runs": runs}


def describe_graph(folder: Path) -> dict[str, Any]:
    """Return a graph's files, what `dailytrain graph --json` prints of them, and the seconds that this took."""
    started = time.monotonic()
    summary = json.loads(run_module("trainer.cli", "graph", str(folder), "--json"))
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
    if len(argv) != 1:
        sys.stderr.write("usage: python -m benchmarks.demo FOLDER\n")
        return 2
    root, dataset = Path(argv[0]), prepare_dataset(CORPUS, TOKENIZER, limit_bytes=LIMIT_BYTES, progress=True)
    root.mkdir(parents=True, exist_ok=True)
    for idea in IDEAS:
        for part, seed in list_trials(idea):
            run_trial(root, idea, part, seed, dataset.folder)
    content = {
        "season": {
            "corpus": CORPUS, "tokenizer": TOKENIZER, "limit_bytes": LIMIT_BYTES, "dataset_hash": dataset.hash,
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
    text = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    FIXTURE.write_bytes(gzip.compress(text, mtime=0))
    sys.stdout.write(f"{FIXTURE}: {FIXTURE.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
