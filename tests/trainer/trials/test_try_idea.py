"""`dailytrain try`: the plan, reused runs, pictures and messages."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from trainer.cli.main import main
from trainer.models import UnknownArchitectureError
from trainer.scoring.multiplier import compare_entries, parse_results
from trainer.trials.plan import Entry, PlanError, TrialPlan, list_shared_sources, plan_trials
from trainer.trials.plot import LossPlot
from trainer.trials.trial_runner import SCORE, TrialError, TrialRunner, load_record

IDEA = Entry(arch="smear", flags=("--model.depth=3",))


def build_plan(folder: Path, idea: Entry = IDEA, **changes: object) -> TrialPlan:
    settings = {"budget": "8steps", "rungs": (0.5, 1.0), "seeds": 2, "dataset": "d", "preset": "cpu-ladder"}
    return plan_trials(idea, folder=folder, **{**settings, **changes})  # type: ignore[arg-type]


def write_scores(plan: TrialPlan) -> None:
    """Write the scores of runs in which the idea has a multiplier of 1.5."""
    for trial in plan.trials:
        trial.folder.mkdir(parents=True)
        multiplier = 1.5 if trial.entry == IDEA else 1.0
        loss = 2 - 0.2 * math.log(trial.share * multiplier) + 0.001 * (-1) ** trial.seed
        score = {"train_flops": 1e12 * trial.share, "train_seconds": 9.0 * trial.share, "bits_per_byte": loss}
        (trial.folder / SCORE).write_text(json.dumps(score))


def test_plan_starts_with_full_budget_and_separate_folders(tmp_path: Path) -> None:
    plan = build_plan(tmp_path)
    assert [(t.entry.arch, t.budget, t.seed) for t in plan.trials] == [
        ("gpt", "8steps", 1),
        ("gpt", "8steps", 2),
        ("gpt", "4steps", 1),
        ("gpt", "4steps", 2),
        ("smear", "8steps", 1),
        ("smear", "8steps", 2),
    ]
    assert len({trial.folder for trial in plan.trials}) == 6
    assert plan.idea.name == "smear, depth 3"


def test_ladder_is_reused_and_edited_idea_is_retrained(tmp_path: Path) -> None:
    one, other = build_plan(tmp_path), build_plan(tmp_path, Entry(arch="smear", flags=("--model.depth=4",)))
    folders = [{trial.folder for trial in plan.trials if trial.entry.arch == "gpt"} for plan in (one, other)]
    assert folders[0] == folders[1]
    assert not {t.folder for t in one.trials if t.entry == IDEA} & {t.folder for t in other.trials}
    assert {t.folder for t in one.trials}.isdisjoint(t.folder for t in build_plan(tmp_path, dataset="e").trials)


def test_shared_sources_include_training_and_optimizer() -> None:
    names = {"/".join(file.parts[-2:]) for file in list_shared_sources()}
    assert {
        "training/run.py",
        "optim/muon.py",
        "data/loader.py",
        "models/base.py",
        "models/scaling.py",
        "trainer/train.py",
    } <= names


def test_baseline_without_idea_is_its_ladder(tmp_path: Path) -> None:
    assert len(build_plan(tmp_path, Entry(arch="gpt")).trials) == 4


@pytest.mark.parametrize("wrong", [{"rungs": (1.0,)}, {"rungs": (0.5, 2.0)}, {"rungs": (0.0, 1.0)}, {"seeds": 1}])
def test_useless_ladder_is_rejected(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        build_plan(tmp_path, **wrong)


def test_unknown_architecture_is_rejected_before_training(tmp_path: Path) -> None:
    with pytest.raises(UnknownArchitectureError, match="no architecture 'gtp'"):
        build_plan(tmp_path, Entry(arch="gtp"))


def test_finished_runs_are_reused_and_verdict_is_printed(
    dataset_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--dataset", str(dataset_folder), "--home", str(tmp_path), "--rungs", "0.5,1,2", "--model.depth=3"]
    dataset = json.loads((dataset_folder / "manifest.json").read_text())["hash"]
    write_scores(build_plan(tmp_path, budget="4e12flops", rungs=(0.5, 1.0, 2.0), seeds=3, dataset=dataset))
    assert main(["try", "smear", *flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    row = next(row for row in answer["entries"] if row["entry"] == IDEA.name)
    assert row["low"] < 1.5 < row["high"]
    assert len(answer["runs"]) == 12
    assert ElementTree.fromstring(Path(answer["picture"]).read_text()).tag.endswith("svg")  # noqa: S314 (our own)
    assert main(["try", "smear", *flags]) == 0
    assert "better than the baseline" in " ".join(capsys.readouterr().out.split())


def test_terminal_plot_marks_the_runs(tmp_path: Path) -> None:
    plan = build_plan(tmp_path, rungs=(0.25, 0.5, 1.0))
    write_scores(plan)
    results = parse_results([load_record(trial) for trial in plan.trials])
    lines = LossPlot.from_comparison(compare_entries(results, "gpt"), results).to_text().splitlines()
    assert "o" in lines[0]  # the smallest rung has the largest loss
    assert lines[-1].rstrip().endswith("x")  # the idea has the lowest loss, at the full budget


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["gpt", "--budget", "soon"], "impossible budget"),
        (["gpt", "--rungs", "a,b"], "must be numbers"),
        (["gpt", "--modle.depth=3"], "no option --modle.depth=3"),
        (["nope"], "no architecture"),
    ],
)
def test_bad_input_prints_one_line(
    dataset_folder: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["try", *flags, "--dataset", str(dataset_folder)])
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
def test_run_is_trained_and_scored_and_failure_is_reported(dataset_folder: Path, tmp_path: Path) -> None:
    tiny = ("--model.depth=2", "--model.width=32", "--model.heads=2")
    fine = build_plan(tmp_path, Entry(arch="gpt", flags=tiny), budget="4steps").trials[-1]
    runner = TrialRunner(dataset_folder, "cpu-ladder", jobs=1)
    ((trial, record),) = runner.run_trials([fine])
    assert trial == fine
    assert 0 < record["bits_per_byte"] < 9
    assert record["flops"] > 0
    broken = build_plan(tmp_path, Entry(arch="gpt", flags=("--model.heads=7",))).trials[-1]
    with pytest.raises(TrialError, match="heads"):
        list(TrialRunner(dataset_folder, "cpu-ladder", jobs=1).run_trials([broken]))
