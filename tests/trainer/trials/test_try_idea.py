"""`dailytrain try`: the plan, reused runs, pictures and messages."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import REPOSITORY
from trainer.cli.main import main
from trainer.cli.try_idea import PRESET
from trainer.models import UnknownArchitectureError
from trainer.scoring.multiplier import compare_entries, parse_results
from trainer.trials.plan import (
    Entry,
    Trial,
    TrialPlan,
    check_options,
    list_shared_sources,
    load_ideas,
    plan_trials,
)
from trainer.trials.plot import LossPlot
from trainer.trials.trial_runner import SCORE, TrialRunner, load_record

IDEA = Entry(arch="smear", flags=("--model.depth=3",))


def build_plan(folder: Path, idea: Entry = IDEA, **changes: object) -> TrialPlan:
    settings = {"budget": "8steps", "rungs": (0.5, 1.0), "seeds": 2, "dataset": "d", "preset": "cpu-ladder"}
    baseline, ideas = Entry(arch="gpt"), [] if idea == Entry(arch="gpt") else [idea]
    return plan_trials(baseline, ideas, title=idea.name, folder=folder, **{**settings, **changes})  # type: ignore[arg-type]


def write_score(trial: Trial, multiplier: float) -> None:
    """Write the score of a run of an idea with this multiplier."""
    trial.folder.mkdir(parents=True)
    loss = 2 - 0.2 * math.log(trial.share * multiplier) + 0.001 * (-1) ** trial.seed
    score = {"train_flops": 1e12 * trial.share, "train_seconds": 9.0 * trial.share, "bits_per_byte": loss}
    (trial.folder / SCORE).write_text(json.dumps(score))


def test_plan_starts_with_full_budget_and_separate_folders(tmp_path: Path) -> None:
    plan = build_plan(tmp_path)
    ladder = [("gpt", budget, seed) for budget in ("8steps", "4steps") for seed in (1, 2)]
    idea = [("smear", "8steps", seed) for seed in (1, 2)]
    assert [(t.entry.arch, t.budget, t.seed) for t in plan.trials] == ladder + idea
    assert len({trial.folder for trial in plan.trials}) == 6
    assert plan.title == "smear, depth 3"
    assert len(build_plan(tmp_path, Entry(arch="gpt")).trials) == 4, "without an idea only the ladder"
    with pytest.raises(UnknownArchitectureError, match="no architecture 'gtp'"):
        build_plan(tmp_path, Entry(arch="gtp"))


def test_ladder_is_reused_and_edited_idea_is_retrained(tmp_path: Path) -> None:
    one, other = build_plan(tmp_path), build_plan(tmp_path, Entry(arch="smear", flags=("--model.depth=4",)))
    folders = [{trial.folder for trial in plan.trials if trial.entry.arch == "gpt"} for plan in (one, other)]
    assert folders[0] == folders[1]
    assert not {t.folder for t in one.trials if t.entry == IDEA} & {t.folder for t in other.trials}
    assert {t.folder for t in one.trials}.isdisjoint(t.folder for t in build_plan(tmp_path, dataset="e").trials)
    sources = {"/".join(file.parts[-2:]) for file in list_shared_sources()}
    assert {"training/run.py", "optim/muon.py", "data/loader.py", "models/base.py", "trainer/train.py"} <= sources


def test_finished_runs_are_reused_and_verdict_is_printed(
    dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--dataset", str(dataset_folder), "--home", str(tmp_path), "--rungs", "0.5,1,2", "--model.depth=3"]
    dataset = json.loads((dataset_folder / "manifest.json").read_text())["hash"]
    plan = build_plan(tmp_path, budget="4e12flops", rungs=(0.5, 1.0, 2.0), seeds=3, dataset=dataset)
    for trial in plan.trials:
        write_score(trial, 1.5 if trial.entry == IDEA else 1.0)
    assert main(["try", "smear", *flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    row = next(row for row in answer["entries"] if row["entry"] == IDEA.name)
    assert row["low"] < 1.5 < row["high"]
    assert len(answer["runs"]) == 12
    assert ElementTree.fromstring(Path(answer["picture"]).read_text()).tag.endswith("svg")  # noqa: S314 (our own)
    assert main(["try", "smear", *flags]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "better than the baseline" in text
    assert f"Runs that a repeated command reuses: {tmp_path}" in text
    width = math.log(row["high"] / row["low"]) / 2 * math.sqrt(3 / 7)
    assert f"With --seeds 7 the interval of {IDEA.name} would be about +- {math.expm1(width):.0%}." in text
    results = parse_results([load_record(trial) for trial in plan.trials])
    lines = LossPlot.from_comparison(compare_entries(results, "gpt"), results).to_text().splitlines()
    assert "o" in lines[0]  # the smallest rung has the largest loss


# --- lists of settings ------------------------------------------------------------------------------------------------

BASE = """
[gpt]
model.depth = 1
model.width = 32
model.heads = 2
train.sequence_length = 32
train.batch = 2
train.dev_tokens = 64
"""
FINAL = """
["final rate 5 %".recipe.schedule]
final = 0.05
"""


def write_list(folder: Path, text: str) -> Path:
    file = folder / "list.toml"
    file.write_text(text)
    return file


def test_list_has_the_options_of_the_baseline_in_each_entry(tmp_path: Path) -> None:
    baseline, ideas = load_ideas(write_list(tmp_path, BASE + FINAL + '[smear]\narch = "smear"\nmodel.depth = 3\n'))
    assert (baseline.name, baseline.arch) == ("gpt", "gpt")
    assert [(idea.name, idea.arch) for idea in ideas] == [("final rate 5 %", "gpt"), ("smear", "smear")]
    assert set(ideas[0].flags) == {*baseline.flags, "--recipe.schedule.final=0.05"}
    assert set(ideas[1].flags) == {*baseline.flags, "--model.depth=3"} - {"--model.depth=1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("final = ", "is not TOML"),
        ("budget = '4steps'", "budget must be a table"),
        (BASE, "must have a table [NAME] for each idea"),
        ("[gpt]\narch = 'smear'" + FINAL, "no arch in [gpt]"),
        ("[other]\ndepth = 3", "options are arch, model.NAME"),
        ("[other]\narch = 'gtp'", "no architecture 'gtp'"),
        ("[other]\nmodel.dpeth = 3", "no option 'dpeth'"),
        ("[other]\nmodel.depth = 2026-11-24", "model.depth must be a whole number"),
        ("[other]\ntrain.bach = 4", "no option"),
        (BASE + "[other]\nmodel.depth = 1", "changes nothing"),
        (FINAL + FINAL.replace("5 %", "0.05"), "two ideas are equal"),
    ],
)
def test_bad_list_prints_one_line_before_training(
    dataset_folder: Path, tmp_path: Path, text: str, message: str, refuse: Callable[..., str]
) -> None:
    file = write_list(tmp_path, text)
    assert message in refuse("try", file, "--dataset", dataset_folder, "--home", tmp_path)


def test_list_prints_a_row_for_each_idea(
    dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_trial(runner: TrialRunner, trial: Trial) -> dict[str, Any]:
        if trial.entry.name == "broken":
            return {"failed": "the loss is not finite"}
        write_score(trial, 1.5 if trial.entry.name == "final rate 5 %" else 1.0)
        return load_record(trial) or {}

    monkeypatch.setattr(TrialRunner, "run_trial", run_trial)
    file = write_list(tmp_path, BASE + FINAL + '["no cap"]\nmodel.softcap = 0.0\n[broken]\nmodel.depth = 2\n')
    flags = ["try", str(file), "--dataset", str(dataset_folder), "--home", str(tmp_path / "home"), "--rungs", "0.5,1,2"]
    assert main([*flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = {row["entry"]: row for row in answer["entries"]}
    assert {"final rate 5 %", "no cap"} <= set(rows)
    assert "broken" not in rows
    assert rows["final rate 5 %"]["low"] < 1.5 < rows["final rate 5 %"]["high"]
    saved = json.loads((tmp_path / "home" / "list.json").read_text())
    assert "--recipe.schedule.final=0.05" in saved["entries"]["final rate 5 %"]
    assert main(flags) == 0
    assert "better than the baseline" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "file", sorted((REPOSITORY / "benchmarks/settings").glob("*.toml")), ids=lambda file: file.stem
)
def test_lists_of_the_benchmarks_have_options_that_exist(file: Path, tmp_path: Path) -> None:
    baseline, ideas = load_ideas(file)
    for entry in (baseline, *ideas):
        check_options(entry, PRESET, tmp_path)
