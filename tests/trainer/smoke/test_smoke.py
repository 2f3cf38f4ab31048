"""A smoke run says exactly what is wrong with an architecture, and where; with a sound one it finds nothing."""

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
from trainer.models import ARCHITECTURES
from trainer.sandbox import get_driver
from trainer.smoke import child, findings
from trainer.smoke.findings import SmokeCheck, SmokeLimits

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
NAME = "smoked_idea"
Smoke = Callable[..., tuple[list[SmokeCheck], dict[str, Any]]]


@pytest.fixture
def smoke(tmp_path: Path, dataset_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Smoke]:
    """Let the sandbox's part look at an architecture in this process; return the checks decided, and all it told."""
    folder, out = tmp_path / "trainer" / "models", tmp_path / "out"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(ARCHITECTURES, NAME, NAME)

    def look(
        *changes: tuple[str, str], seconds: float = 100, arch: str = NAME, **asked: Any
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
        told = json.loads((out / "smoke.json").read_text())
        return findings.decide_checks(told, command.losses(out), SmokeLimits(arch, 40, seconds, **asked)), told

    yield look
    sys.modules.pop(NAME, None)


def test_a_sound_architecture_starts_fits_and_learns(smoke: Smoke) -> None:
    checks, told = smoke()
    assert [(check.name, check.passed) for check in checks] == [("starts", True), ("fits", True), ("learns", True)]
    assert told["parameters"] == {"total": 2 * 16 * 8192, "embedding": 16 * 8192, "non_embedding": 16 * 8192}
    assert told["flops_per_token"] == 6 * 16 * 8192
    assert told["state_bytes"] == 16 * 2 * 16 * 8192
    assert told["hints"] == []


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
            "The model answers with the shape (2, 64, 321) where (2, 64, 320) is wanted.",
        ),
        (('("*",)', '("head.*",)'), "starts", "no group of the recipe takes the parameter embedding.weight."),
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
def test_each_mistake_has_its_sentence(smoke: Smoke, change: tuple[str, str], name: str, sentence: str) -> None:
    checks, _ = smoke(change)
    assert [check.passed for check in checks] == [*[True] * (len(checks) - 1), False]
    assert checks[-1].name == name
    assert sentence in checks[-1].text


def test_the_line_that_failed_is_shown(smoke: Smoke) -> None:
    checks, _ = smoke(("self.steps = 0", "self.steps = config.steps"))
    assert (checks[-1].file, checks[-1].line) == (f"trainer/models/{NAME}.py", 29)
    assert checks[-1].code == "self.steps = config.steps"


def test_an_architecture_that_is_not_there_names_those_that_are(smoke: Smoke) -> None:
    checks, _ = smoke(arch="wave")
    assert checks[-1].text.startswith("There is no architecture 'wave'; the known ones are gpt, ")
    assert "trainer/models/__init__.py" in checks[-1].text


def test_one_that_takes_too_long_is_stopped(smoke: Smoke) -> None:
    checks, _ = smoke(seconds=0)
    assert checks[-1].text.startswith("Too slow: 1 of 40 small steps in ")


def test_what_no_track_can_pay_for_is_told(smoke: Smoke) -> None:
    checks, told = smoke(memory_bytes=1e6)
    assert checks[-1].text.startswith("Too many parameters for the track: weights, gradients and optimizer alone take")
    told |= {"budget": "24h", "flops_per_token": 1e15}
    (_, fits) = findings.decide_checks(
        told | {"stage": "trains", "steps": None}, [], SmokeLimits(NAME, 40, 100, peak=1e15)
    )
    assert fits.text.startswith("Too many FLOPs a token for the track: at 1e+15 its budget of 24h pays for 42 steps of")


def test_what_is_no_mistake_is_a_hint(smoke: Smoke) -> None:
    checks, told = smoke(
        ("std=0.01", "std=1.0"),
        ("x = self.embedding(tokens)", "x = self.embedding(tokens) * x_scale(tokens)"),
        (
            "class Model",
            "def x_scale(tokens):\n    return float(tokens.float().mean().numpy() * 0 + 1)\n\n\nclass Model",
        ),
    )
    assert checks[-1].passed
    told_hints = findings.hints(told, [9.0, 5.0], 320)
    assert any("holds no record by FLOPs" in hint for hint in told_hints)
    assert any("It starts at 9.0 nats a token, where knowing nothing is 5.8" in hint for hint in told_hints)


@pytest.mark.parametrize(
    ("exceeded", "code", "sentence"),
    [
        ("It used more than 3.0 GB of memory.", 137, "Out of memory while the small model was trained: it used more"),
        ("It ran longer than 900 seconds.", 137, "Too slow: it ran longer than 900 seconds while the small model"),
        ("It made more than 50,000 files.", 137, "It went over its limits while the small model was trained: it made"),
        (None, 139, "It crashed with a segmentation fault while the small model was trained."),
    ],
)
def test_a_process_that_was_ended_is_told_too(exceeded: str | None, code: int, sentence: str) -> None:
    found = findings.explain_kill("trains", exceeded, code)
    assert found is not None
    assert found.text.startswith(sentence)
    assert findings.explain_kill("trains", None, 1) is None, "that was this machine"


def test_what_the_sandbox_tells_is_not_believed() -> None:
    told = {"stage": "done", "steps": "many", "budget": 7, "parameters": [1], "hints": 3, "failure": {"line": "x"}}
    checks = findings.decide_checks(told, [], SmokeLimits("x", 10, 10))
    assert [check.passed for check in checks] == [True, True, False]
    assert command.record({"parameters": {"total": float("inf")}}, checks, [], "none", 1.0)["parameters"] is None


def test_the_whole_thing_in_the_sandbox_finds_one_that_looks_ahead(
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
    assert command.main([*words, "--preset", "tiny", "--data", str(tmp_path / "data")]) == command.FOUND
    said = json.loads(capsys.readouterr().out)
    assert said["sentence"].startswith("The model's predictions depend on tokens that come after them")
    assert [check["passed"] for check in said["checks"]] == [True, True, True, False]
    assert (said["sandbox"], said["steps"]) == ("bubblewrap", 60)


def test_what_is_wrong_on_the_command_line_is_no_finding() -> None:
    person, agent = argparse.Namespace(job=False), argparse.Namespace(job=True)
    told = {"stage": "imports", "failure": {"reason": "There is no architecture 'wave'; the known ones are gpt."}}
    with pytest.raises(command.UsageError, match="there is no architecture 'wave'"):
        command.misled(person, told, command.BAD_INPUT)
    command.misled(agent, told, command.BAD_INPUT)
    command.misled(person, told, command.FOUND)
    with pytest.raises(command.Broken, match="could not work on this machine"):
        command.misled(agent, told, command.INFRASTRUCTURE)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["gpt", "--sandbox", "docker"], "the sandboxes are auto, bubblewrap and none, not docker"),
        (["gpt", "--config", "nowhere.toml"], "there is no file nowhere.toml"),
        (["gpt", "--job"], "the sandboxes are auto, bubblewrap and none, not auto"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*words, "--data", str(tmp_path / "data")]) == command.BAD_INPUT
    captured = capsys.readouterr()
    assert captured.err == f"dailytrain smoke: {complaint}\n"
    assert "Traceback" not in captured.out
