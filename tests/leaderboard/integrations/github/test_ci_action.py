"""The GitHub Action's programs as a runner starts them, against a live site and an OIDC issuer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from leaderboard import outbox
from leaderboard.models import OutboxMessage, Run, Track
from tests.leaderboard.conftest import Repository
from tests.support.clean_environment import build_clean_environment
from tests.support.oidc_issuer import Issuer
from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("instant_outbox")]

ACTION = REPOSITORY / ".github" / "actions" / "train"


@pytest.fixture
def job_environment(
    oidc_server: Issuer, live_server: Any, main_repository: Repository, track: Track, settings: Any, tmp_path: Path
) -> Any:
    """Environment variables of a CI job of the main repository, whose path has two parts as on GitHub."""
    settings.GITHUB_OIDC_AUDIENCE = settings.SITE_URL = live_server.url
    server_folder, _, _ = str(main_repository.path).rpartition("/")
    main_repository.path.rename(main_repository.path.with_name("main.git"))
    main_repository.path = main_repository.path.with_name("main.git")
    settings.MAIN_REPOSITORY = f"{server_folder}/main.git"
    oidc_server.claims["sha"] = sha = main_repository.git("rev-parse", "HEAD")
    return {
        "PATH": os.environ["PATH"],
        "TRAIN_SITE": live_server.url,
        "TRAIN_ARCHITECTURE": "smear",
        "TRAIN_HEAD": sha,
        "TRAIN_PAUSE_SECONDS": "0.02",
        "GITHUB_SERVER_URL": server_folder,
        "GITHUB_REPOSITORY": "main",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "ACTIONS_ID_TOKEN_REQUEST_URL": f"{oidc_server.url}/token?x=1",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of this job",
    }


def run_program(
    program: str, environment: dict[str, str], folder: Path = REPOSITORY
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(ACTION / program)]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=WAIT_SECONDS)


def read_job_file(environment: dict[str, str], name: str) -> str:
    return Path(environment[name]).read_text()


def test_ci_job_with_github_token_requests_run_and_writes_summary(job_environment: dict[str, str]) -> None:
    process = run_program("request_run.py", job_environment)
    assert (process.returncode, process.stderr) == (0, ""), process.stdout
    run = Run.objects.get()
    assert read_job_file(job_environment, "GITHUB_OUTPUT").splitlines()[:3] == [
        f"run={run.pk}",
        f"page={job_environment['TRAIN_SITE']}/runs/{run.pk}/",
        "state=waiting",
    ]
    summary = read_job_file(job_environment, "GITHUB_STEP_SUMMARY")
    assert summary.startswith(f"### [Run {run.pk}]({job_environment['TRAIN_SITE']}/runs/{run.pk}/)\n")
    assert "Next:" in summary
    assert "of this job" not in process.stdout + summary


def test_ci_job_waiting_for_result_exits_with_run_state(job_environment: dict[str, str]) -> None:
    assert run_program("request_run.py", job_environment).returncode == 0
    for state, code in (("finished", 0), ("failed", 1)):
        Run.objects.update(state=state, bits_per_byte=2.5 if state == "finished" else None)
        assert run_program("request_run.py", job_environment | {"TRAIN_WAIT_MINUTES": "1"}).returncode == code
    Run.objects.update(state="waiting")
    assert run_program("request_run.py", job_environment | {"TRAIN_WAIT_MINUTES": "0.01"}).returncode == 0


def test_ci_job_without_an_answer_ends_with_its_address(
    job_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "notify_worker", lambda message: None)  # the worker is down
    process = run_program("request_run.py", job_environment | {"TRAIN_PAUSE_SECONDS": "0"})
    assert process.returncode == 2, process.stdout
    assert process.stdout.count("Waiting for the site to fetch the commit\n") == 14
    address = f"{job_environment['TRAIN_SITE']}/api/v1/run-requests/{OutboxMessage.objects.get().pk}"
    assert address in read_job_file(job_environment, "GITHUB_STEP_SUMMARY")


# --- changed architectures and their smoke test ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "architectures", "single"),
    [
        ("trainer/models/smear.py", "smear", "smear"),
        ("trainer/optim/optimizers.py", "gpt", ""),
        ("trainer/models/gpt.py", "gpt", ""),
        ("trainer/models/smear/block.py", "smear", "smear"),
        ("README.md", "", ""),
    ],
)
def test_changed_files_of_pull_request_select_architectures(
    main_repository: Repository, path: str, architectures: str, single: str
) -> None:
    base = main_repository.git("rev-parse", "HEAD")
    main_repository.commit("Idea", {path: "better = True\n"})
    process = run_program("changed_architectures.py", {"PATH": os.environ["PATH"], "BASE": base}, main_repository.path)
    assert process.stdout.splitlines() == [f"architectures={architectures}", f"one={single}"], process.stderr


SMOKE_RESULT = {
    "passed": False,
    "sentence": "It sees later tokens.",
    "checks": [{"name": "starts", "passed": True, "text": "yes | no"}],
    "hints": ["Slow."],
    "file": "trainer/models/smear.py",
    "line": 3,
}


@pytest.mark.parametrize(
    ("result", "code"), [(SMOKE_RESULT, 3), ({**SMOKE_RESULT, "passed": True, "file": ""}, 0), (None, 1)]
)
def test_smoke_result_is_written_as_table_and_line_annotation(
    tmp_path: Path, result: dict[str, Any] | None, code: int
) -> None:
    """`dailytrain smoke` is replaced here; tests/trainer/smoke/test_smoke.py tests it."""
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").touch()
    program = "" if result is None else f"print({json.dumps(json.dumps(result))})"
    (tmp_path / "trainer" / "cli.py").write_text(f"import sys\n{program}\nsys.exit({code})\n")
    environment = build_clean_environment(ARCHITECTURES="smear", PYTHONPATH=str(tmp_path))
    environment["GITHUB_STEP_SUMMARY"] = str(tmp_path / "summary.md")
    command = [sys.executable, str(ACTION / "run_smoke_tests.py")]
    process = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_SECONDS
    )
    assert process.returncode == (2 if result is None else code), process.stderr
    summary = read_job_file(environment, "GITHUB_STEP_SUMMARY")
    if result is None:
        assert "could not run (exit code 1)" in summary
        return
    assert "| starts | yes | yes \\| no |" in summary
    has_annotation = "::error file=trainer/models/smear.py,line=3::It sees later tokens." in process.stdout
    assert has_annotation == (not result["passed"])


# --- workflow files --------------------------------------------------------------------------------------------------


def test_workflow_keeps_id_token_from_model_code_and_expressions_out_of_scripts() -> None:
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
    action = yaml.safe_load((ACTION / "action.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]] + action["runs"]["steps"]
    scripts = [step["run"] for step in steps if "run" in step]
    assert len(scripts) == 4
    assert not any("${{" in script for script in scripts)
