"""The smoke test names an architecture's mistake and its line, and passes a sound one."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trainer
from trainer.cli import smoke as command
from trainer.cli.smoke import Findings
from trainer.data.dataset import Dataset
from trainer.errors import ExitCode, ModelError, UserError
from trainer.graph.foreign_files import read_and_count
from trainer.graph.reading import read_traced
from trainer.models import ARCHITECTURES
from trainer.protocol import GRAPH_FILES, SmokeResult
from trainer.sandbox import get_driver
from trainer.smoke import child, traced_files
from trainer.smoke.findings import SmokeLimits, check_size, describe_failure, list_hints
from trainer.smoke.report import TraceReport
from trainer.smoke.small_model import TrainingResult
from trainer.smoke.traced_files import read_sandbox_graphs

SOUND = '''"""An idea."""

from dataclasses import dataclass

import torch
from torch import nn

from trainer.models.base import LanguageModel, ParameterGroup, Recipe


@dataclass(frozen=True)
class Config:
    vocabulary_size: int
    sequence_length: int
    depth: int
    width: int = 16

    @classmethod
    def sized(cls, depth, vocabulary_size, sequence_length):
        return cls(vocabulary_size, sequence_length, depth)


class Model(LanguageModel):
    def __init__(self, config):
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.head = nn.Linear(config.width, config.vocabulary_size, bias=False)
        nn.init.normal_(self.head.weight, std=0.01)
        self.steps = 0

    def features(self, tokens):
        x = self.embedding(tokens)
        return x

    def logits(self, features):
        return self.head(features)


def recipe(config):
    return Recipe((ParameterGroup("all", ("*",), "adamw", learning_rate=0.03),))
'''
PEEKS = ("        return x\n", "        return x + torch.cat((x[:, 1:], 0 * x[:, :1]), 1)\n")
NAME = "smoked_idea"
Smoke = Callable[..., Findings]


@pytest.fixture
def smoke(tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Smoke]:
    """Trace and read the graphs in this process, then check; return the findings."""
    folder, out = tmp_path / "trainer" / "models", tmp_path / "out"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(ARCHITECTURES, NAME, NAME)
    monkeypatch.setattr(traced_files, "check_foreign_files", read_and_count)

    def run_smoke(*changes: tuple[str, str], arch: str = NAME, **options: Any) -> Findings:
        text = SOUND
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        for earlier in (out, tmp_path / "graph", tmp_path / "private", folder / "__pycache__"):
            shutil.rmtree(earlier, ignore_errors=True)
        (folder / f"{NAME}.py").write_text(text)
        sys.modules.pop(NAME, None)
        importlib.invalidate_caches()
        out.mkdir()
        dataset = Dataset.open(dataset_folder)
        flags = ["--preset", "cpu-ladder", "--arch", arch, "--out", str(out), "--small-vocabulary-size", "320"]
        child.main([*flags, *(["--trace-only"] if options.get("trace_only") else [])])
        findings = Findings(TraceReport.model_validate_json((out / "smoke.json").read_bytes()))
        defaults = {"steps": 40, "seconds": 100, "memory_bytes": None, "peak": None, "trace_only": False}
        given = argparse.Namespace(**{**defaults, "graph_out": tmp_path / "graph", **options})
        failed = describe_failure(findings.report)
        with closing(command.iterate_checks(given, findings, failed, dataset, out, tmp_path / "private")) as checks:
            for check in checks:
                findings.checks.append(check)
                if not check.passed:
                    break
        return findings

    yield run_smoke
    sys.modules.pop(NAME, None)


def test_sound_architecture_passes_all_checks(smoke: Smoke, tmp_path: Path) -> None:
    found = smoke()
    assert [(check.name, check.passed) for check in found.checks] == [
        *(("starts", True), ("fits", True), ("learns", True), ("causal", True))
    ]
    assert found.full_size is not None
    assert found.full_size.parameters_embedding == 16 * 8192
    assert found.full_size.state_bytes == 16 * 2 * 16 * 8192
    assert found.full_size.summary["product_flops_per_token"] == 6 * 16 * 8192
    assert found.report.hints == []
    assert read_traced(tmp_path / "graph").compute_hash() == found.full_size.summary["hash"]
    record = command.build_record(found, 320, "none", 1.0)
    SmokeResult.model_validate(record)
    assert record["parameters"] == 2 * 16 * 8192


def test_trace_only_trains_no_small_model(smoke: Smoke, tmp_path: Path) -> None:
    found = smoke(trace_only=True)
    assert [(check.name, check.passed) for check in found.checks] == [("starts", True), ("fits", True)]
    assert command.build_record(found, 320, "none", 1.0)["sentence"] == "It imports, traces and fits."
    assert (tmp_path / "graph" / "train.json").is_file()


def test_model_that_looks_ahead_fails(smoke: Smoke) -> None:
    found = smoke(PEEKS, steps=60)
    assert [check.passed for check in found.checks] == [True, True, True, False]
    assert found.checks[-1].text.startswith("The model's predictions depend on tokens that come after them")


STARTS = [
    ("import torch\n", "import torch\nimport nowhere\n", "was imported: No module named 'nowhere' (FILE, line 6)."),
    ("self.steps = 0", "self.steps = = 0", f"the architecture {NAME} was imported: invalid syntax (FILE, line 29)."),
    ("def recipe", "def prescription", f"{NAME}.py has no recipe: an architecture has a Config, a Model"),
    ("cls(vocabulary_size, s", "cls(1 // 0, s", "ZeroDivisionError: integer division or modulo by zero ("),
    ("return x\n", "return x * (2 if x.sum() > 0 else 1)\n", "use `torch.where`, or compute with the tensor itself ("),
    (
        "config.vocabulary_size, bias",
        "config.vocabulary_size + 1, bias",
        "logits returns [2, 2, 321] instead of [2, 2, 320].",
    ),
    ('("*",)', '("head.*",)', "no group of the recipe matches the parameter embedding.weight."),
    (
        "self.steps = 0",
        "self.register_buffer('rope', torch.ones(4, dtype=torch.complex128))",
        "the buffer rope has the type complex128, which a checkpoint cannot hold: convert it to complex64, or",
    ),
]
LATER = [
    (
        "fits",
        "self.steps = 0",
        "self.steps = 0\n        assert config.vocabulary_size < 8000, 'too many words'",
        "it cannot be traced: AssertionError: too many words (FILE, line 30).",
    ),
    ("learns", "learning_rate=0.03", "learning_rate=1e30", "The loss became nan at step "),
    pytest.param(
        *("learns", "learning_rate=0.03", "learning_rate=0.0", "The loss does not fall: 5.78 nats a token before"),
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "sentence"), [*(("starts", *case) for case in STARTS), *LATER])
def test_mistake_fails_its_check_with_message(smoke: Smoke, name: str, old: str, new: str, sentence: str) -> None:
    checks = smoke((old, new)).checks
    assert [check.passed for check in checks] == [*[True] * (len(checks) - 1), False]
    assert checks[-1].name == name
    assert sentence.replace("FILE", f"trainer/models/{NAME}.py") in checks[-1].text


def test_failed_line_or_unknown_name_is_reported(smoke: Smoke) -> None:
    (check,) = smoke(("self.steps = 0", "self.steps = config.steps")).checks
    assert (check.file, check.line) == (f"trainer/models/{NAME}.py", 29)
    assert check.code == "self.steps = config.steps"
    (check,) = smoke(arch="wave").checks
    assert check.text.startswith("There is no architecture 'wave'; the known ones are gpt, ")
    assert "trainer/models/__init__.py" in check.text


def test_unaffordable_size_or_slow_training_fails(smoke: Smoke) -> None:
    assert smoke(seconds=0).checks[-1].text.startswith("Too slow: 1 of 40 small steps in ")
    found = smoke(memory_bytes=1e6, trace_only=True)
    sentence = "Too many parameters for the track: weights, gradients and optimizer alone take"
    assert found.checks[-1].text.startswith(sentence)
    report = found.report.model_copy(update={"budget": "24h"})
    assert found.full_size is not None
    size = replace(found.full_size, summary={**found.full_size.summary, "flops_per_token": 1e15})
    fits = check_size(report, size, SmokeLimits(40, peak=1e15))
    assert fits.text.startswith("Too many FLOPs a token for the track: at 1e+15 its budget of 24h pays for 42 steps of")


def test_graphs_and_reports_of_the_box_are_not_trusted(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="left no graphs"):
        read_sandbox_graphs(tmp_path, "graph")
    (tmp_path / "graph").mkdir()
    for name in GRAPH_FILES:
        (tmp_path / "graph" / name).write_text('{"version": 1}')
    with pytest.raises(ModelError, match="while its graphs were read"):
        read_sandbox_graphs(tmp_path, "graph")
    (tmp_path / "graph" / GRAPH_FILES[0]).unlink()
    (tmp_path / "graph" / GRAPH_FILES[0]).symlink_to("/etc/passwd")
    with pytest.raises(ModelError, match="left no graphs"):
        read_sandbox_graphs(tmp_path, "graph")
    values = {"stage": [], "depth": -1, "tokens_per_step": True, "budget": 7, "hints": 3, "failure": {"line": "x"}}
    report = TraceReport.model_validate(values)
    assert (report.stage, report.depth, report.tokens_per_step, report.hints) == ("imports", None, None, None)
    found = describe_failure(report)
    assert found is not None
    assert (found.name, found.line) == ("starts", 0)


def test_fault_of_the_machine_or_the_command_line_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_value_error(flags: list[str]) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(child, "parse_config", raise_value_error)
    options = ["--arch", "gpt", "--out", str(tmp_path), "--small-vocabulary-size", "320"]
    assert child.main(options) == ExitCode.INFRASTRUCTURE
    assert "Traceback" in capsys.readouterr().err
    person, agent = argparse.Namespace(job=False), argparse.Namespace(job=True)
    reason = "There is no architecture 'wave'; the known ones are gpt."
    report = TraceReport.model_validate({"stage": "imports", "failure": {"reason": reason}})
    with pytest.raises(UserError, match="there is no architecture 'wave'"):
        command.raise_other_faults(person, report, ExitCode.USER_ERROR)
    command.raise_other_faults(agent, report, ExitCode.USER_ERROR)
    command.raise_other_faults(person, report, ExitCode.MODEL_ERROR)
    with pytest.raises(command.SmokeTestError, match="failed on this machine"):
        command.raise_other_faults(agent, report, ExitCode.INFRASTRUCTURE)


@pytest.mark.slow
def test_sandboxed_smoke_test_finds_model_that_looks_ahead(
    tmp_path: Path, dataset_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
    source = tmp_path / "source"
    shutil.copytree(Path(trainer.__file__).parent, source / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    (source / "trainer/models/peeker.py").write_text(SOUND.replace(*PEEKS))
    dictionary = source / "trainer/models/__init__.py"
    dictionary.write_text(
        dictionary.read_text().replace('    "gpt"', '    "peeker": "trainer.models.peeker",\n    "gpt"', 1)
    )
    words = ["peeker", "--json", "--steps", "60", "--sandbox", "bubblewrap", "--model-source", str(source)]
    assert command.main([*words, "--preset", "tiny", "--data", str(tmp_path / "data")]) == ExitCode.MODEL_ERROR
    record = json.loads(capsys.readouterr().out)
    assert record["sentence"].startswith("The model's predictions depend on tokens that come after them")
    assert [check["passed"] for check in record["checks"]] == [True, True, True, False]
    assert (record["sandbox"], record["steps"]) == ("bubblewrap", 60)


ADVANCES = (
    "    def logits(self, features):\n",
    """    def advance(self, tokens, state=None):
        return self.features(tokens) + 0.3, None

    def logits(self, features):
""",
)


def test_wrong_generation_and_high_first_loss_are_hints(smoke: Smoke) -> None:
    found = smoke(ADVANCES, seconds=0)
    (hint,) = found.report.hints or []
    assert hint.startswith("`advance`, which generates text token by token, differs from `features` by up to 0.3 ")
    assert [check.passed for check in found.checks] == [True, True, False], "only the training is too slow"
    (hint,) = list_hints(TraceReport(), TrainingResult(40, 1.0, 1.0, 1, (9.0, 5.0)), 320)
    assert hint.startswith("It starts at 9.0 nats a token, where a uniform guess is 5.8")
