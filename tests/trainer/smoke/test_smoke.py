"""The smoke test names an architecture's mistake and its line, and passes a sound one."""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trainer
from trainer.cli import smoke as command
from trainer.cli.main import main
from trainer.errors import ExitCode, UserError
from trainer.models import ARCHITECTURES
from trainer.sandbox import get_driver
from trainer.smoke import child, findings
from trainer.smoke.findings import SmokeCheck, SmokeLimits
from trainer.smoke.report import SmokeReport

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
        self.steps += len(tokens) == 4
        x = self.embedding(tokens)
        return x

    def logits(self, features):
        return self.head(features)


def recipe(config):
    return Recipe((ParameterGroup("all", ("*",), "adamw", learning_rate=0.03),))
'''
PEEKS = ("        return x\n", "        return x + torch.cat((x[:, 1:], 0 * x[:, :1]), 1)\n")
STATELESS = ("        self.steps += len(tokens) == 4\n", "")
NAME = "smoked_idea"
Smoke = Callable[..., tuple[list[SmokeCheck], dict[str, Any]]]


@pytest.fixture
def smoke(tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Smoke]:
    """Run the sandboxed part in this process; return its checks and its report."""
    folder, out = tmp_path / "trainer" / "models", tmp_path / "out"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(ARCHITECTURES, NAME, NAME)

    def run_smoke(
        *changes: tuple[str, str], seconds: float = 100, arch: str = NAME, **bounds: Any
    ) -> tuple[list[SmokeCheck], Any]:
        text = SOUND
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / f"{NAME}.py").write_text(text)
        importlib.invalidate_caches()
        out.mkdir()
        flags = ["--preset", "cpu-ladder", "--arch", arch, "--small-dataset", str(dataset_folder), "--out", str(out)]
        child.main([*flags, "--steps", "40", "--seconds", str(seconds)])
        report = json.loads((out / "smoke.json").read_text())
        limits = SmokeLimits(arch, 40, seconds, **bounds)
        return findings.decide_checks(SmokeReport(**report), command.read_losses(out), limits), report

    yield run_smoke
    sys.modules.pop(NAME, None)


def test_sound_architecture_passes_all_checks(smoke: Smoke) -> None:
    checks, report = smoke()
    assert [(check.name, check.passed) for check in checks] == [("starts", True), ("fits", True), ("learns", True)]
    assert report["parameters"] == {"total": 2 * 16 * 8192, "embedding": 16 * 8192, "non_embedding": 16 * 8192}
    assert report["flops_per_token"] == 6 * 16 * 8192
    assert report["state_bytes"] == 16 * 2 * 16 * 8192
    assert report["hints"] == []


@pytest.mark.parametrize(
    ("change", "name", "sentence"),
    [
        (
            ("import torch\n", "import torch\nimport nowhere\n"),
            "starts",
            f"was imported: No module named 'nowhere' (trainer/models/{NAME}.py, line 6).",
        ),
        (
            ("self.steps = 0", "self.steps = = 0"),
            "starts",
            f"while the architecture {NAME} was imported: invalid syntax (trainer/models/{NAME}.py, line 29).",
        ),
        (
            ("def recipe", "def prescription"),
            "starts",
            f"{NAME}.py has no recipe: an architecture has a Config, a Model",
        ),
        (
            ("cls(vocabulary_size, s", "cls(1 // 0, s"),
            "starts",
            "ZeroDivisionError: integer division or modulo by zero (",
        ),
        (("self.steps = 0", "{}['steps']"), "starts", "KeyError while the model was built: 'steps' ("),
        (
            ("config.vocabulary_size, bias", "config.vocabulary_size + 1, bias"),
            "starts",
            "The model returns logits of the shape (2, 64, 321) instead of (2, 64, 320).",
        ),
        (('("*",)', '("head.*",)'), "starts", "no group of the recipe matches the parameter embedding.weight."),
        (
            ("self.steps = 0", "self.steps = 0\n        assert config.vocabulary_size < 8000, 'too many words'"),
            "fits",
            f"it cannot be built: AssertionError: too many words (trainer/models/{NAME}.py, line 30).",
        ),
        (
            ("        return x\n", "        return x * (float('nan') if self.steps > 8 else 1)\n"),
            "learns",
            "The loss became nan at step ",
        ),
        (
            ("        return x\n", "        torch.empty(2**50) if self.steps > 8 else 0\n        return x\n"),
            "learns",
            "Out of memory in a forward pass, at a small size already (trainer/models/",
        ),
        (("learning_rate=0.03", "learning_rate=0.0"), "learns", "The loss does not fall: 5.78 nats a token before"),
    ],
)
def test_mistake_fails_its_check_with_message(smoke: Smoke, change: tuple[str, str], name: str, sentence: str) -> None:
    checks, _ = smoke(change)
    assert [check.passed for check in checks] == [*[True] * (len(checks) - 1), False]
    assert checks[-1].name == name
    assert sentence in checks[-1].text


def test_failed_line_is_reported(smoke: Smoke) -> None:
    checks, _ = smoke(("self.steps = 0", "self.steps = config.steps"))
    assert (checks[-1].file, checks[-1].line) == (f"trainer/models/{NAME}.py", 29)
    assert checks[-1].code == "self.steps = config.steps"


def test_unknown_architecture_lists_known_ones(smoke: Smoke) -> None:
    checks, _ = smoke(arch="wave")
    assert checks[-1].text.startswith("There is no architecture 'wave'; the known ones are gpt, ")
    assert "trainer/models/__init__.py" in checks[-1].text


def test_slow_training_is_stopped(smoke: Smoke) -> None:
    checks, _ = smoke(seconds=0)
    assert checks[-1].text.startswith("Too slow: 1 of 40 small steps in ")


def test_unaffordable_size_fails(smoke: Smoke) -> None:
    checks, report = smoke(memory_bytes=1e6)
    assert checks[-1].text.startswith("Too many parameters for the track: weights, gradients and optimizer alone take")
    report |= {"budget": "24h", "flops_per_token": 1e15}
    unfinished = SmokeReport(**report | {"stage": "trains", "steps": None})
    (_, fits) = findings.decide_checks(unfinished, [], SmokeLimits(NAME, 40, 100, peak=1e15))
    assert fits.text.startswith("Too many FLOPs a token for the track: at 1e+15 its budget of 24h pays for 42 steps of")


def test_non_fatal_findings_are_hints(smoke: Smoke) -> None:
    checks, report = smoke(
        ("std=0.01", "std=1.0"),
        ("x = self.embedding(tokens)", "x = self.embedding(tokens) * x_scale(tokens)"),
        (
            "class Model",
            "def x_scale(tokens):\n    return torch.fft.fft(tokens.float()).real.mean() * 0 + 1\n\n\nclass Model",
        ),
    )
    assert checks[-1].passed
    hints = findings.list_hints(SmokeReport(**report), [9.0, 5.0], 320)
    assert any("cannot set a record by FLOPs" in hint for hint in hints)
    assert any("It starts at 9.0 nats a token, where a uniform guess is 5.8" in hint for hint in hints)


def test_plain_value_error_of_setup_is_no_user_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_value_error(flags: list[str]) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(child, "parse_config", raise_value_error)
    options = ["--arch", "gpt", "--small-dataset", "x", "--out", str(tmp_path), "--steps", "1", "--seconds", "1"]
    assert child.main(options) == ExitCode.INFRASTRUCTURE
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("exceeded", "code", "sentence"),
    [
        ("It used more than 3.0 GB of memory.", 137, "Out of memory while the small model was trained: it used more"),
        ("It ran longer than 900 seconds.", 137, "Too slow: it ran longer than 900 seconds while the small model"),
        (
            "It created more than 50,000 files.",
            137,
            "It exceeded its limits while the small model was trained: it",
        ),
        (None, 139, "It crashed with a segmentation fault while the small model was trained."),
    ],
)
def test_killed_process_is_explained(exceeded: str | None, code: int, sentence: str) -> None:
    found = findings.explain_kill("trains", exceeded, code)
    assert found is not None
    assert found.text.startswith(sentence)
    assert findings.explain_kill("trains", None, 1) is None, "that was this machine"


def test_malformed_report_is_not_trusted() -> None:
    values = {"stage": "done", "steps": "many", "budget": 7, "parameters": [1], "hints": 3, "failure": {"line": "x"}}
    checks = findings.decide_checks(SmokeReport.model_validate(values), [], SmokeLimits("x", 10, 10))
    assert [check.passed for check in checks] == [True, True, False]
    numbers = {"parameters": {"total": float("inf")}, "steps": True, "depth": -1, "state_bytes": 10**400, "stage": []}
    report = SmokeReport.model_validate(numbers)
    record = command.build_record(report, checks, [], "none", 1.0)
    assert [record[name] for name in ("parameters", "steps", "depth", "state_bytes")] == [None] * 4
    assert report.stage == "imports"


def test_sandboxed_smoke_test_finds_model_that_looks_ahead(
    tmp_path: Path, dataset_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
    source = tmp_path / "source"
    shutil.copytree(Path(trainer.__file__).parent, source / "trainer", ignore=shutil.ignore_patterns("__pycache__"))
    (source / "trainer/models/peeker.py").write_text(SOUND.replace(*PEEKS).replace(*STATELESS))
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


def test_command_line_error_is_no_finding() -> None:
    person, agent = argparse.Namespace(job=False), argparse.Namespace(job=True)
    reason = "There is no architecture 'wave'; the known ones are gpt."
    report = SmokeReport.model_validate({"stage": "imports", "failure": {"reason": reason}})
    with pytest.raises(UserError, match="there is no architecture 'wave'"):
        command.raise_other_faults(person, report, ExitCode.USER_ERROR)
    command.raise_other_faults(agent, report, ExitCode.USER_ERROR)
    command.raise_other_faults(person, report, ExitCode.MODEL_ERROR)
    with pytest.raises(command.SmokeTestError, match="failed on this machine"):
        command.raise_other_faults(agent, report, ExitCode.INFRASTRUCTURE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt", "--sandbox", "docker"], "the sandboxes are auto, bubblewrap and none, not docker"),
        (["gpt", "--config", "nowhere.toml"], "there is no file nowhere.toml"),
        (["gpt", "--job"], "the sandboxes are auto, bubblewrap and none, not auto"),
    ],
)
def test_bad_option_is_one_line_error(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["smoke", *words, "--data", str(tmp_path / "data")]) == ExitCode.USER_ERROR
    captured = capsys.readouterr()
    assert captured.err == f"dailytrain smoke: {message}\n"
    assert "Traceback" not in captured.out
