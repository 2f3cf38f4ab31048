"""Trace all cases in one process, and judge the files that are left in another."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.cheats import (
    bombs,
    forged_files,
    hidden_work,
    honest_models,
    looking_ahead,
    side_effects,
    test_text,
    untraceable,
)
from benchmarks.cheats.base import Case, T, V, Verdict, sample_text
from trainer.errors import ModelError, to_one_line
from trainer.graph.counting import count_training_cost
from trainer.graph.files import GraphError, TracedArchitecture
from trainer.graph.foreign_files import check_foreign_files
from trainer.graph.model import build_model, build_model_without_data, read_recipe
from trainer.graph.reading import read_traced
from trainer.graph.summary import describe_traced
from trainer.graph.trace import trace_architecture
from trainer.scoring.model_scorer import Losses, ModelScorer
from trainer.scoring.text_score import TextScore, score_text

CASES: list[Case] = [
    *honest_models.CASES,
    *side_effects.CASES,
    *untraceable.CASES,
    *hidden_work.CASES,
    *looking_ahead.CASES,
    *forged_files.CASES,
    *bombs.CASES,
    *test_text.CASES,
]
ERROR_FILE, BROKEN_FILE = "error.txt", "broken.txt"
CHARGED = 1.05  # times the honest FLOPs
CLOCKS = {name: getattr(time, name) for name in ("perf_counter", "monotonic", "time", "process_time")}


@dataclass(frozen=True)
class Judgment:
    verdict: Verdict
    figures: str


def trace_cases(folder: Path) -> None:
    """Write the files of each case, or its error, to a folder of its own. Runs the cheats' Python."""
    for number, case in enumerate(CASES):
        out = folder / str(number)
        out.mkdir(parents=True)
        random.seed(number)
        try:
            module = case.build()
            module.Model(module.Config(V, T)).features(torch.zeros(2, T, dtype=torch.int64))
        except Exception as error:
            (out / BROKEN_FILE).write_text(to_one_line(error))
            continue
        try:
            files = trace_architecture(module, module.Config(V, T)).to_files()
            for name, data in (case.edit(files) if case.edit else files).items():
                (out / name).write_bytes(data)
        except Exception as error:
            (out / ERROR_FILE).write_text(to_one_line(error))
        for name, clock in CLOCKS.items():
            setattr(time, name, clock)


def start_tracing(folder: Path) -> None:
    """Trace all cases in a process of its own, in an empty working folder."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "benchmarks.cheats", "--trace", str(folder / "files")]
    work = folder / "work"
    work.mkdir(parents=True)
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "HOME": str(work), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=work, env=environment, check=True, stderr=subprocess.DEVNULL)


class Judge:
    """Compares the files of cases with those of the honest architecture. Runs none of their Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.honest = read_traced(folder / "0")
        self.honest_flops = self.count_flops(self.honest)
        self.honest_score = self.score(self.honest)

    def judge(self, number: int) -> Judgment:
        out = self.folder / str(number)
        if (out / BROKEN_FILE).is_file():  # a cheat that does not run proves nothing
            return Judgment("does not run", (out / BROKEN_FILE).read_text())
        if (out / ERROR_FILE).is_file():
            return Judgment("does not trace", (out / ERROR_FILE).read_text())
        try:
            check_foreign_files(out)
            traced = self.read(number)
            read_recipe(traced)
            build_model(traced)
            flops = self.count_flops(traced)
        except (GraphError, RuntimeError) as error:
            return Judgment("does not load", to_one_line(error))
        if number and traced.to_files() == self.honest.to_files():
            return Judgment("no effect", "the same four files as the honest architecture")
        try:
            score = self.score(traced, CASES[number])
            if CASES[number].draw:
                return self.compare_draws(number, traced, score)
            return self.compare(number, score, max(map(np.divide, flops, self.honest_flops)))
        except ModelError as error:
            return Judgment("refused", str(error))

    def compare_draws(self, number: int, traced: TracedArchitecture, public: TextScore) -> Judgment:
        """Compare the score of public text with that of text that a secret draws, where knowledge should not help."""
        seed = CASES[number].draw
        drawn, honest = (
            self.score(model, case, seed) for model, case in ((traced, CASES[number]), (self.honest, None))
        )
        assert public.difference is not None
        figures = (
            f"{public.bits.bits_per_byte:.3f} bits of public text, {public.difference.nats:+.3f} nats by the training "
            f"graph; {drawn.bits.bits_per_byte:.3f} bits of a secret draw, honest {honest.bits.bits_per_byte:.3f}"
        )
        gain = honest.bits.bits_per_byte - drawn.bits.bits_per_byte
        return Judgment("no effect" if gain < 2 * (honest.bits.stderr or 0) else "gains", figures)

    def compare(self, number: int, score: TextScore, ratio: float) -> Judgment:
        found, plain = score.bits.bits_per_byte, score.bits_per_byte_uncorrected
        figures = f"{plain:.3f} bits, corrected {found:.3f} ± {score.bits.stderr or 0:.3f}; {ratio:.2f} x the FLOPs"
        if score.difference and score.difference.is_beyond_noise and CASES[number].train:
            return Judgment("differs", f"{plain:.3f} bits; {score.difference.nats:+.3f} nats by the training graph")
        if score.correction.is_beyond_rounding:
            return Judgment("corrected", figures)
        if score.untrained.is_better:
            unigram = score.untrained.unigram_bits_per_byte
            return Judgment("refused", f"{plain:.3f} bits untrained, token frequencies {unigram:.3f}")
        if CASES[number].expected == "honest":
            return Judgment("honest", f"correction {score.correction.nats:+.1e} nats; {ratio:.2f} x the FLOPs")
        honest = self.honest_score.bits_per_byte_uncorrected
        verdict: Verdict = "charged" if ratio > CHARGED else "no effect"
        return Judgment(verdict, f"{ratio:.2f} x the FLOPs; {plain:.3f} bits without later tokens, honest {honest:.3f}")

    def read(self, number: int) -> TracedArchitecture:
        return read_traced(self.folder / str(number))

    def count_flops(self, traced: TracedArchitecture) -> tuple[float, float]:
        """Return FLOPs per token of training, in passes of `forged_files.ROWS` rows, and of scoring."""
        count_training_cost(build_model_without_data(traced), [forged_files.ROWS])
        summary = describe_traced(traced)
        return summary["flops_per_token"], summary["scoring_flops_per_token"]

    def score(self, traced: TracedArchitecture, case: Case | None = None, seed: int = 0) -> TextScore:
        torch.manual_seed(0)
        scorer = ModelScorer(build_model(traced), torch.device("cpu"), T)
        untrained = scorer
        if case is not None and case.train:
            untrained = ModelScorer(build_model(traced), torch.device("cpu"), T)
            case.train(scorer.model)
        reference: Losses | None = None if seed else getattr(self, "honest_score", None) and self.honest_score.losses
        ones, rng = np.ones(V, np.int64), np.random.default_rng(0)
        return score_text(scorer, untrained, sample_text(seed=seed), ones, 0, lambda *_: None, reference, rng)


def judge_all(folder: Path) -> Iterator[tuple[Case, Judgment]]:
    judge = Judge(folder)
    for number, case in enumerate(CASES):
        yield case, judge.judge(number)
