"""`dailytrain sweep`: the file, the draws, resuming, and what is read off the runs."""

from __future__ import annotations

import dataclasses
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process_trials import InProcessTrialRunner
from tests.support.paths import REPOSITORY
from trainer.cli import sweep as command
from trainer.cli.main import main
from trainer.cli.try_idea import PRESET
from trainer.scoring.multiplier import load_results
from trainer.trials.plan import BASELINE, Trial
from trainer.trials.sweep import RESULTS, RUNS, Sweep
from trainer.trials.sweep_draws import Draws
from trainer.trials.sweep_space import SweepError, SweepSpace, load_space
from trainer.trials.trial_runner import SCORE, TrialRunner

BASE = """
budget = "4steps"
rungs = [0.5, 1]
seeds = 2
[base]
model.depth = 1
model.width = 32
model.heads = 2
train.sequence_length = 32
train.batch = 2
train.dev_tokens = 64
"""
SEARCH = """
search = "halving"
trials = 2
levels = 2
"""
SPACE = """
[space]
recipe.matrices.learning_rate = { low = 0.005, high = 0.05, log = true }
model.windows = { values = ["L", "SL"] }
"""
ABLATION = """
[ablations."final rate 5 %".recipe.schedule]
final = 0.05
"""


def read_space(folder: Path, text: str) -> SweepSpace:
    file = folder / "space.toml"
    file.write_text(text)
    return load_space(file)


def build_sweep(space: SweepSpace, folder: Path, dataset: Path, **options: Any) -> Sweep:
    runner = InProcessTrialRunner(dataset, "tiny", 1, eager=True, keep_failures=True, **options)
    return Sweep(space, folder, "d", "tiny", runner)


def run_quietly(sweep: Sweep) -> Sweep:
    sweep.run(lambda *_: None)
    return sweep


def list_runs(sweep: Sweep) -> list[tuple[Any, ...]]:
    return [(row["entry"], row["share"], row["seed"], row["flops"]) for row in sweep.to_dict(None)["runs"]]


def read_weights(sweep: Sweep) -> dict[str, bytes]:
    folder = sweep.folder / RUNS
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.safetensors")}


@pytest.mark.slow
def test_interrupted_sweep_resumes_exactly(dataset_folder: Path, tmp_path: Path) -> None:
    space = read_space(tmp_path, SEARCH + BASE + SPACE)
    whole = run_quietly(build_sweep(space, tmp_path / "whole", dataset_folder))
    with pytest.raises(KeyboardInterrupt):
        run_quietly(build_sweep(space, tmp_path / "stopped", dataset_folder, stop_before=5))
    assert len(load_results(tmp_path / "stopped" / RESULTS)) == 5
    resumed = run_quietly(build_sweep(space, tmp_path / "stopped", dataset_folder))
    # Ladder 2 x 2, two draws at half the budget, the better of them at the full one.
    assert len(whole.rows) == whole.runner.trained == resumed.runner.trained + 5 == 4 + 2 + 2
    assert list_runs(resumed) == list_runs(whole)
    assert read_weights(resumed) == read_weights(whole) != {}
    assert len(load_results(tmp_path / "whole" / RESULTS)) == 8
    states = [trial.state.name for trial in Draws(space, tmp_path / "whole" / "draws.journal").list_complete()]
    assert states == ["COMPLETE"] * 2


def test_given_numbers_are_not_rounded_and_drawn_ones_are(tmp_path: Path) -> None:
    space = read_space(tmp_path, SEARCH + BASE + SPACE)
    assert "--model.rope_base=123456.0" in space.build_entry({"model.rope_base": 123456.0}).flags
    rates = [draw["recipe.matrices.learning_rate"] for draw in Draws(space, tmp_path / "journal").draw()]
    assert all(float(f"{rate:.4g}") == rate for rate in rates)


def test_draws_continue_in_the_journal(tmp_path: Path) -> None:
    space = read_space(tmp_path, SEARCH + BASE + SPACE)
    few, space = space, dataclasses.replace(space, trials=4)
    whole = Draws(space, tmp_path / "whole").draw()
    first = Draws(few, tmp_path / "part").draw()
    assert first == whole[:2]
    assert Draws(space, tmp_path / "part").draw() == whole
    assert len({draw["recipe.matrices.learning_rate"] for draw in whole}) == 4
    assert all(0.005 <= draw["recipe.matrices.learning_rate"] <= 0.05 for draw in whole)


def test_sweep_of_another_space_is_refused(dataset_folder: Path, tmp_path: Path) -> None:
    build_sweep(read_space(tmp_path, BASE + ABLATION), tmp_path / "out", dataset_folder).check_folder()
    changed = read_space(tmp_path, BASE.replace("width = 32", "width = 64") + ABLATION)
    other = build_sweep(changed, tmp_path / "out", dataset_folder)
    with pytest.raises(SweepError, match="another space"):
        other.run(lambda *_: None)


def test_sweep_with_more_rungs_and_ablations_continues_in_its_folder(dataset_folder: Path, tmp_path: Path) -> None:
    build_sweep(read_space(tmp_path, BASE + ABLATION), tmp_path / "out", dataset_folder).check_folder()
    more = ABLATION + ABLATION.replace("5", "6")
    changed = read_space(tmp_path, BASE.replace("[0.5, 1]", "[0.5, 1, 2]").replace("seeds = 2", "seeds = 3") + more)
    build_sweep(changed, tmp_path / "out", dataset_folder).check_folder()


def test_loss_of_the_baseline_is_that_at_the_full_budget(dataset_folder: Path, tmp_path: Path) -> None:
    sweep = build_sweep(read_space(tmp_path, BASE + ABLATION), tmp_path / "out", dataset_folder)
    sweep.rows = [{"entry": "gpt", "share": share, "bits_per_byte": 3 - share} for share in (0.5, 1.0, 2.0)]
    assert sweep.find_loss("gpt") == 2.0


@pytest.mark.slow
def test_failed_model_is_a_row_and_not_repeated(dataset_folder: Path, tmp_path: Path) -> None:
    text = BASE + ABLATION.replace("final", "top").replace("0.05", "1e30")
    sweep = run_quietly(build_sweep(read_space(tmp_path, text), tmp_path / "out", dataset_folder))
    failed = [row for row in sweep.rows if "failed" in row]
    assert {row["seed"] for row in failed} == {1, 2}
    again = run_quietly(build_sweep(sweep.space, tmp_path / "out", dataset_folder))
    assert again.runner.trained == 0
    assert len(again.rows) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget = ", "is not TOML"),
        ("bugdet = '4steps'", "no setting 'bugdet'"),
        ("budget = 'soon'\n" + ABLATION, "impossible budget"),
        ("rungs = [1]" + ABLATION, "rungs must be 1 and at least one other"),
        ("seeds = 1" + ABLATION, "seeds must be a whole number of at least 2"),
        ("seeds = 2", "nothing to run"),
        ("search = 'random'" + ABLATION, "need each other"),
        (SPACE, "need each other"),
        ("search = 'grid'" + SPACE, "random or halving"),
        ("search = 'random'\n[space]\nmodel.depth = 3", "must be {values"),
        ("search = 'random'\n[space]\nmodel.depth = {low = 3, high = 2}", "low must be below high"),
        ("search = 'random'\n[space]\ndepth = {values = [2]}", "options are arch, model.NAME"),
        ("[ablations.gpt]\nmodel.depth = 3", "cannot be called gpt"),
        ("[ablations.'draw 0']\nmodel.depth = 3", "cannot be called draw 0"),
        ("[ablations.other]\nmodel.depth = 2026-11-24", "must be a number, a word"),
        ("search = 'random'\n[space]\nmodel.rope_base = {low = 1, high = inf}", "must be numbers"),
        ("rungs = [1, inf]" + ABLATION, "rungs must be a list of numbers"),
        ("[ablations.other]\narch = 'gtp'", "no architecture 'gtp'"),
        ("[base]\narch = 'smear'" + ABLATION, "cannot set arch"),
        ("score = 'train'" + ABLATION, "score is test or dev"),
        ("extends = 'nowhere.toml'", "cannot read"),
        ("extends = 3", "must be the name of a file"),
        ("extends = 'space.toml'", "which extends another file"),
    ],
)
def test_bad_space_prints_one_line(tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "space.toml"
    file.write_text(text)
    assert main(["sweep", str(file)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("model.dpeth = 3", "no option 'dpeth'"),
        ("model.depth = 'two'", "model.depth must be a whole number"),
        ("recipe.matrices.rate = 0.1", "no 'rate'"),
        ("train.bach = 4", "no option"),
        ("recipe.schedule.final = 2", "final must be from 0 to 1"),
        ("model.depth = 1", "changes nothing"),
    ],
)
def test_bad_option_is_refused_before_training(
    dataset_folder: Path, tmp_path: Path, options: str, message: str
) -> None:
    space = read_space(tmp_path, BASE + f"[ablations.wrong]\n{options}\n")
    sweep = build_sweep(space, tmp_path / "out", dataset_folder)
    with pytest.raises(SweepError, match=message):
        run_quietly(sweep)
    assert sweep.runner.trained == 0


def fake_losses(self: TrialRunner, trial: Trial) -> dict[str, Any]:
    """Store the score of a run in which the final rate brings a multiplier of 1.5."""
    multiplier = 1.5 if any("final" in flag for flag in trial.entry.flags) else 1.0
    loss = 2 - 0.2 * math.log(trial.share * multiplier) + 0.001 * (-1) ** trial.seed
    trial.folder.mkdir(parents=True)
    score = {"train_flops": 1e12 * trial.share, "train_seconds": 9.0 * trial.share, "bits_per_byte": loss}
    (trial.folder / SCORE).write_text(json.dumps(score))
    return self.load_finished(trial) or {}


def test_table_picture_and_json_show_multipliers(
    dataset_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TrialRunner, "run_trial", fake_losses)
    file = tmp_path / "space.toml"
    file.write_text(BASE.replace("seeds = 2", "seeds = 3").replace("[0.5, 1]", "[0.5, 1, 2]") + ABLATION)
    flags = ["sweep", str(file), "--dataset", str(dataset_folder), "--out", str(tmp_path / "out")]
    assert main([*flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    row = next(row for row in answer["entries"] if row["entry"] == "final rate 5 %")
    assert row["low"] < 1.5 < row["high"]
    assert "recipe.schedule.final=0.05" in row["options"]
    assert json.loads((tmp_path / "out" / RESULTS).read_text())["entries"] == answer["entries"]
    picture = (tmp_path / "out" / command.PICTURE).read_text()
    assert ElementTree.fromstring(picture).tag.endswith("svg")  # noqa: S314 (our own)
    assert "final rate 5 %" in picture
    assert main(flags) == 0
    assert "better than the baseline" in " ".join(capsys.readouterr().out.split())


def test_space_extends_another_and_changes_its_tables(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(BASE + ABLATION + "[ablations.windows]\nmodel.windows = 'SL'\n")
    changes = "extends = 'small.toml'\nseeds = 3\n[base]\nmodel.depth = 2\n[ablations.windows]\nmodel.mlp_init = 0.4\n"
    space, small = read_space(tmp_path, changes), load_space(tmp_path / "small.toml")
    assert (space.seeds, space.budget, space.rungs) == (3, small.budget, small.rungs)
    assert space.base == {**small.base, "model.depth": 2}
    assert space.ablations == {**small.ablations, "windows": {"model.windows": "SL", "model.mlp_init": 0.4}}


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted((REPOSITORY / "benchmarks/spaces").glob("*.toml")), ids=lambda file: file.stem)
def test_spaces_of_the_benchmarks_have_options_that_exist(file: Path, tmp_path: Path) -> None:
    space = load_space(file)
    sweep = Sweep(space, tmp_path, "d", PRESET, TrialRunner(tmp_path, PRESET, 1))
    for name, options in {BASELINE: {}, **space.ablations}.items():
        sweep.check_entry(name, space.build_entry(options))


@pytest.mark.slow
def test_runs_scored_on_dev_have_their_last_evaluation(dataset_folder: Path, tmp_path: Path) -> None:
    sweep = build_sweep(read_space(tmp_path, "score = 'dev'\n" + BASE + ABLATION), tmp_path / "out", dataset_folder)
    sweep.runner.uses_dev = True
    run_quietly(sweep)
    results = [json.loads(file.read_text()) for file in sweep.folder.rglob("result.json")]
    assert len(results) == 6
    assert sorted(row["bits_per_byte"] for row in sweep.rows) == sorted(each["bits_per_byte"] for each in results)
