"""The Action's own programs, as a runner starts them: against a site on a socket, and GitHub's issuer of tokens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.cache import cache, caches

from leaderboard.models import ApiToken, Run, Track
from tests.leaderboard.conftest import Repository
from tests.support import oidc_issuer
from tests.support.oidc_issuer import Issuer
from tests.support.paths import REPOSITORY

ACTION = REPOSITORY / ".github" / "actions" / "train"


@pytest.fixture
def issuer(settings: Any) -> Iterator[Issuer]:
    cache.clear()
    caches["github"].clear()
    with oidc_issuer.running() as running:
        settings.GITHUB_OIDC_ISSUER = running.url
        settings.GITHUB_REPOSITORY = "trains/daily"
        settings.GITHUB_OIDC_REPOSITORIES = []
        yield running
    caches["github"].clear()


@pytest.fixture
def job(issuer: Issuer, live_server: Any, main: Repository, track: Track, settings: Any, tmp_path: Path) -> Any:
    """The environment of a job of the main repository, whose address is made of two words, as on GitHub."""
    settings.GITHUB_OIDC_AUDIENCE = settings.SITE_URL = live_server.url
    server, _, _ = str(main.path).rpartition("/")
    main.path.rename(main.path.with_name("main.git"))
    main.path = main.path.with_name("main.git")
    settings.MAIN_REPOSITORY = f"{server}/main.git"
    issuer.claims["sha"] = sha = main.git("rev-parse", "HEAD")
    return {
        "PATH": os.environ["PATH"],
        "TRAIN_SITE": live_server.url,
        "TRAIN_ARCHITECTURE": "smear",
        "TRAIN_HEAD": sha,
        "TRAIN_PAUSE_SECONDS": "0.02",
        "GITHUB_SERVER_URL": server,
        "GITHUB_REPOSITORY": "main",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "ACTIONS_ID_TOKEN_REQUEST_URL": f"{issuer.url}/token?x=1",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of this job",
    }


def started(program: str, environment: dict[str, str], folder: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ACTION / program)]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=120)


def written(environment: dict[str, str], name: str) -> str:
    return Path(environment[name]).read_text()


def test_a_job_asks_with_githubs_token_and_its_summary_says_what_the_site_says(job: dict[str, str]) -> None:
    done = started("ask.py", job)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    run = Run.objects.get()
    assert written(job, "GITHUB_OUTPUT").splitlines()[:3] == [
        f"run={run.pk}",
        f"page={job['TRAIN_SITE']}/runs/{run.pk}/",
        "state=waiting",
    ]
    summary = written(job, "GITHUB_STEP_SUMMARY")
    assert summary.startswith(f"### [Run {run.pk}]({job['TRAIN_SITE']}/runs/{run.pk}/)\n")
    assert "Next:" in summary
    assert "of this job" not in done.stdout + summary


def test_with_a_token_of_the_sites_own_nothing_is_asked_of_github(
    job: dict[str, str], issuer: Issuer, maintainer: Any
) -> None:
    token = ApiToken(name="CI", owner=maintainer)
    secret = token.draw_secret()
    token.save()
    assert started("ask.py", job | {"TRAIN_TOKEN": secret}).returncode == 0
    assert issuer.asked == []


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"ACTIONS_ID_TOKEN_REQUEST_URL": ""}, "GitHub gives this job no token. It needs `permissions: id-token"),
        ({"TRAIN_TRACK": "none"}, "track: there is no track 'none'."),
        ({"TRAIN_HEAD": "1" * 40}, "The token is of commit"),
        ({"TRAIN_ARCHITECTURE": "smear gpt"}, "One run is of one architecture"),
        ({"TRAIN_SITE": "http://127.0.0.1:9"}, "127.0.0.1:9 cannot be reached"),
    ],
)
def test_what_the_site_refuses_is_the_jobs_error(job: dict[str, str], changed: dict[str, str], sentence: str) -> None:
    done = started("ask.py", job | changed)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert sentence in done.stdout
    assert re.search("^::error::", done.stdout, re.MULTILINE)
    assert sentence in written(job, "GITHUB_STEP_SUMMARY")


def test_it_waits_for_the_verdict_and_fails_with_the_run(job: dict[str, str]) -> None:
    assert started("ask.py", job).returncode == 0
    for state, code in (("finished", 0), ("failed", 1)):
        Run.objects.update(state=state, bits_per_byte=2.5 if state == "finished" else None)
        assert started("ask.py", job | {"TRAIN_WAIT_MINUTES": "1"}).returncode == code
    Run.objects.update(state="waiting")
    assert started("ask.py", job | {"TRAIN_WAIT_MINUTES": "0.01"}).returncode == 0


# --- which architectures, and their smoke test ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "architectures", "one"),
    [
        ("trainer/models/smear.py", "smear", "smear"),
        ("trainer/optim/optimizers.py", "gpt", ""),
        ("trainer/models/gpt.py", "gpt", ""),
        ("README.md", "", ""),
    ],
)
def test_what_a_pull_request_changes_is_what_is_tested(
    main: Repository, path: str, architectures: str, one: str
) -> None:
    base = main.git("rev-parse", "HEAD")
    main.commit("Idea", {path: "better = True\n"})
    done = started("changed.py", {"PATH": os.environ["PATH"], "BASE": base}, main.path)
    assert done.stdout.splitlines() == [f"architectures={architectures}", f"one={one}"], done.stderr


def test_somebody_may_name_it(main: Repository) -> None:
    done = started("changed.py", {"PATH": os.environ["PATH"], "ASKED": "gpt"}, main.path)
    assert done.stdout.splitlines() == ["architectures=gpt", "one=gpt"]


FOUND = {
    "passed": False,
    "sentence": "It sees later tokens.",
    "checks": [{"name": "starts", "passed": True, "text": "yes | no"}],
    "hints": ["Slow."],
    "file": "trainer/models/smear.py",
    "line": 3,
}


@pytest.mark.parametrize(("found", "code"), [(FOUND, 3), ({**FOUND, "passed": True, "file": ""}, 0), (None, 1)])
def test_the_smoke_test_is_a_table_in_the_summary_and_points_at_the_line(
    tmp_path: Path, found: dict[str, Any] | None, code: int
) -> None:
    """The command itself has tests of its own (tests/trainer/smoke/test_smoke.py); here it only speaks."""
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").touch()
    said = "" if found is None else f"print({json.dumps(json.dumps(found))})"
    (tmp_path / "trainer" / "cli.py").write_text(f"import sys\n{said}\nsys.exit({code})\n")
    environment = {"PATH": os.environ["PATH"], "ARCHITECTURES": "smear", "PYTHONPATH": str(tmp_path)}
    environment["GITHUB_STEP_SUMMARY"] = str(tmp_path / "summary.md")
    command = [sys.executable, str(ACTION / "smoke.py")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == (2 if found is None else code), done.stderr
    summary = written(environment, "GITHUB_STEP_SUMMARY")
    if found is None:
        assert "could not run (exit code 1)" in summary
        return
    assert "| starts | yes | yes \\| no |" in summary
    pointed = "::error file=trainer/models/smear.py,line=3::It sees later tokens." in done.stdout
    assert pointed == (not found["passed"])


# --- the files themselves ---------------------------------------------------------------------------------------------


def test_githubs_word_is_never_beside_a_models_code_and_no_secret_is_stored() -> None:
    text = (REPOSITORY / ".github" / "workflows" / "train.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    trusted = [name for name, job in workflow["jobs"].items() if "id-token" in job.get("permissions", {})]
    assert trusted == ["ask"]
    (step,) = [step for step in workflow["jobs"]["ask"]["steps"] if step["uses"] == "./.github/actions/train"]
    assert step["with"]["smoke"] == "false"
    assert "secrets." not in text
    assert "pull_request_target" not in text
    assert all(
        step["with"]["persist-credentials"] is False
        for job in workflow["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/checkout")
    )


def test_nothing_that_a_stranger_wrote_is_pasted_into_a_script() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "train.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]] + action["runs"]["steps"]
    scripts = [step["run"] for step in steps if "run" in step]
    assert len(scripts) == 4
    assert not any("${{" in script for script in scripts)


def test_every_input_that_the_workflow_gives_is_one_of_the_actions() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "train.yml").read_text())
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            if step.get("uses") == "./.github/actions/train":
                assert step["with"].keys() <= action["inputs"].keys()
    for step in action["runs"]["steps"]:
        assert step["shell"] == "bash"
        if found := re.search(r"ACTION_PATH/(\w+\.py)", step["run"]):
            assert (ACTION / found[1]).is_file()
