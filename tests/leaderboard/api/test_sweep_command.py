"""`dailytrain sweep --server`: ablations become runs of a real site, and their results come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache

from leaderboard.models import ApiToken, Entry, Run, Track
from tests.leaderboard.conftest import Repository
from trainer.cli.main import main as dailytrain
from trainer.cli.sweep_at_site import list_comparison_pages, nest_options

pytestmark = pytest.mark.processes

SPACE = """
[ablations."final rate 5 %"]
recipe.schedule.final = 0.05
[ablations.windows]
model.windows = "SL"
[ablations.smear]
arch = "smear"
"""


@pytest.fixture
def space(main_repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache.clear()
    monkeypatch.chdir(main_repository.fork(tmp_path / "fork").path)
    file = tmp_path / "small.toml"
    file.write_text(SPACE)
    return file


def draw_token() -> str:
    token = ApiToken(name="Carol", owner=User.objects.create_user("carol"))
    secret = token.draw_secret()
    token.save()
    return secret


@pytest.mark.django_db(transaction=True)
def test_ablations_become_runs_of_a_site_once(
    main_repository: Repository, space: Path, track: Track, live_server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["sweep", str(space), "--server", live_server.url, "--track", track.slug, "--token", draw_token()]
    flags += ["--repository", str(main_repository.path)]
    assert dailytrain([*flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in answer["entries"]}
    assert list(rows) == ["final rate 5 %", "windows", "smear"]
    runs = [row["run"] for row in rows.values()]
    assert len(set(runs)) == Run.objects.count() == 3
    assert answer["comparisons"] == [f"{live_server.url}/compare/?runs={','.join(map(str, runs))}"]
    entry = Entry.objects.get(pk=rows["final rate 5 %"]["entry"])
    assert (entry.title, entry.config) == ("small: final rate 5 %", {"recipe": {"schedule": {"final": 0.05}}})
    assert "recipe.schedule.final 0.05" in entry.hypothesis
    assert Entry.objects.get(pk=rows["smear"]["entry"]).architecture == "smear"
    assert {row["state"] for row in rows.values()} == {"waiting"}
    # The same commit and options: no new runs. Other options of the same name: a new one.
    assert dailytrain(flags) == 0
    output = capsys.readouterr()
    assert "windows" in output.out
    assert output.err.startswith("ignored, since the site's track decides: budget, rungs, ")
    assert Run.objects.count() == 3
    space.write_text(SPACE.replace("0.05", "0.1"))
    assert dailytrain(flags) == 0
    assert Run.objects.count() == 4


@pytest.mark.django_db(transaction=True)
def test_multiplier_of_the_site_is_read_back(
    main_repository: Repository,
    space: Path,
    track: Track,
    live_server: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from leaderboard.api import entries

    class Row:
        def estimate_dict(self, table: object) -> dict[str, Any]:
            named = {"entry": "x", "runs": 3, "tied_with": [], "seeds_needed": 0, "extrapolated": False, "rank": 1}
            return {**named, "cm": 1.25, "low": 1.1, "high": 1.4, "verdict": "better", "axis": "flops", "full": 1e13}

    class Table:
        def get_row(self, entry: int) -> Row:
            return Row()

    monkeypatch.setattr(entries, "load_standings", lambda track: Table())
    flags = ["sweep", str(space), "--server", live_server.url, "--track", track.slug, "--token", draw_token()]
    assert dailytrain([*flags, "--repository", str(main_repository.path)]) == 0
    out = capsys.readouterr().out
    assert out.count("1.250") == 3
    assert out.count("1.100 to 1.400") == 3


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (SPACE, (), "needs a token"),
        (SPACE, ("--token", "x"), "did not answer"),
        ("[base]\nmodel.depth = 2\n" + SPACE, ("--token", "x"), "baseline stands for [base]"),
        ("search = 'random'\n[space]\nmodel.windows = {values = ['L']}", ("--token", "x"), "runs ablations only"),
    ],
)
def test_impossible_sweep_at_a_site_prints_one_line(
    main_repository: Repository,
    space: Path,
    text: str,
    flags: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    space.write_text(text)
    server = ("--server", "http://127.0.0.1:9", "--repository", str(main_repository.path))
    assert dailytrain(["sweep", str(space), *server, *flags]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_options_become_tables_and_long_sweeps_several_comparisons() -> None:
    options = {"model.windows": "SL", "recipe.matrices.momentum": 0.9, "recipe.clip": 1.0}
    assert nest_options(options) == {"model": {"windows": "SL"}, "recipe": {"matrices": {"momentum": 0.9}, "clip": 1.0}}
    assert [page.partition("=")[2] for page in list_comparison_pages("http://x/", range(1, 13))] == [
        "1,2,3,4,5,6,7,8,9,10",
        "11,12",
    ]
