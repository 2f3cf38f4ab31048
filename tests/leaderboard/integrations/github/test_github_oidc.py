"""CI jobs on GitHub: their OIDC tokens, with keys from a real socket, and the programs of our Action."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
import yaml
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.core.cache import caches
from django.test import Client

from leaderboard.models import Entry, Run, Track
from scheduler import rate_limits
from tests.leaderboard.conftest import Repository
from tests.support import oidc_issuer, run_requests
from tests.support.oidc_issuer import Issuer
from tests.support.paths import REPOSITORY
from tests.support.waits import WAIT_SECONDS

pytestmark = pytest.mark.processes

RequestRun = Callable[..., Any]


@pytest.fixture
def request_run(client: Client, main_repository: Repository, track: Track, oidc_server: Issuer) -> RequestRun:
    """Return a function that requests a run with a token, by default of the main repository's newest commit."""
    oidc_server.claims["sha"] = sha = main_repository.git("rev-parse", "HEAD")
    known = {"repository": str(main_repository.path), "sha": sha, "architecture": "smear", "title": "Smeared keys"}

    def post(token: str, **changes: Any) -> Any:
        return run_requests.request_run(client, known | changes, token)

    return post


def test_ci_token_actor_is_matched_by_github_account_id(oidc_server: Issuer, request_run: RequestRun) -> None:
    ada = User.objects.create_user("ada-here")
    SocialAccount.objects.create(user=ada, provider="github", uid="77")
    assert request_run(oidc_server.create_token()).status_code == 200
    entry = Entry.objects.get()
    assert (entry.requested_by, entry.author) == (ada, "ada-here")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"signed_by": "two"}, "The token's signature is not GitHub's."),
        ({"kid": "two"}, "The token is not signed by GitHub: its key is not known there."),
        ({"exp": int(time.time()) - 86_400}, "The token has expired: ask GitHub for it right before you ask here."),
        ({"nbf": int(time.time()) + 86_400}, "The token cannot be read: The token is not yet valid (nbf)."),
        ({"aud": "https://other.example"}, "with the audience http://127.0.0.1:8000."),
        ({"iss": "https://token.actions.githubusercontent.com"}, "The token is not of http://127.0.0.1:"),
        ({"repository": "mallory/daily"}, "Jobs of mallory/daily may not ask here"),
        ({"repository": "trains/daily2"}, "Jobs of trains/daily2 may not ask here"),
        ({"event_name": "pull_request_target"}, "A job of the event pull_request_target may not ask for runs"),
        ({"without": "repository"}, "does not say its repository"),
        ({"without": "exp"}, 'The token cannot be read: Token is missing the "exp" claim.'),
    ],
)
def test_ci_token_with_wrong_claim_is_rejected_with_reason(
    oidc_server: Issuer, request_run: RequestRun, changed: dict[str, Any], sentence: str
) -> None:
    response = request_run(oidc_server.create_token(**changed))
    assert response.status_code == 401
    assert sentence in response.json()["detail"]
    assert not Entry.objects.exists()


def test_ci_token_with_forged_signature_is_rejected(oidc_server: Issuer, request_run: RequestRun) -> None:
    claims = jwt.decode(oidc_server.create_token(), options={"verify_signature": False})
    public = oidc_server.build_jwk("one")["n"]
    forged = [
        jwt.encode(claims, None, algorithm="none", headers={"kid": "one"}),
        jwt.encode(claims, public, algorithm="HS256", headers={"kid": "one"}),
        jwt.encode(claims, oidc_issuer.generate_key("one"), algorithm="RS512", headers={"kid": "one"}),
        oidc_server.create_token()[:-8] + "AAAAAAAA",
        "a.b.c",
        "..",
        f"{'x' * 20_000}.b.c",
    ]
    for token in forged:
        response = request_run(token)
        assert response.status_code == 401, token[:60]
        assert response.json()["detail"].startswith("The token")
    assert not Entry.objects.exists()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"sha": "1" * 40}, "The token is of commit"),
        ({"repository": "https://github.com/mallory/daily"}, "the request is for https://github.com/mallory/daily."),
        ({"repository": "https://127.0.0.1.example/trains/daily"}, "of trains/daily, and the request is for"),
    ],
)
def test_ci_token_for_other_commit_or_repository_is_rejected(
    oidc_server: Issuer, request_run: RequestRun, changed: dict[str, Any], sentence: str
) -> None:
    response = request_run(oidc_server.create_token(), **changed)
    assert response.status_code == 403
    assert sentence in response.json()["detail"]
    assert not Entry.objects.exists()


def test_ci_token_of_pull_request_is_valid_for_its_head_commit(
    oidc_server: Issuer, main_repository: Repository, request_run: RequestRun
) -> None:
    """`sha` of the token is the merge commit; the head to train is its second parent."""
    base = main_repository.git("rev-parse", "HEAD")
    main_repository.git("switch", "--quiet", "--create", "idea")
    head = main_repository.commit("Idea", {"trainer/models/smear.py": "class Model:\n    better = True\n"})
    main_repository.git("switch", "--quiet", "main")
    main_repository.commit("Meanwhile", {"README.md": "Another train.\n"})
    main_repository.git("merge", "--quiet", "--no-ff", "-m", "Merge", "idea")
    merge = main_repository.git("rev-parse", "HEAD")
    job = {"event_name": "pull_request", "sha": merge, "ref": "refs/pull/7/merge"}
    assert request_run(oidc_server.create_token(**job), sha=head).status_code == 200
    assert Entry.objects.get().sha == head
    for other in (base, main_repository.git("rev-parse", "HEAD~1"), "1" * 40):
        response = request_run(oidc_server.create_token(**job), sha=other)
        assert response.status_code == 403, other
    pushed = request_run(oidc_server.create_token(sha=merge), sha=head)
    assert pushed.status_code == 403  # the token of a push is valid for its own commit only


def test_ci_token_of_pull_request_while_repository_is_unreachable_gets_503(
    oidc_server: Issuer, request_run: RequestRun
) -> None:
    """The mirror does not have the merge commit, and it cannot be fetched."""
    token = oidc_server.create_token(event_name="pull_request", sha="1" * 40)
    response = request_run(token)
    assert response.status_code == 503
    assert response["Retry-After"] == "60"
    assert response.json()["detail"].endswith("No run was created. Try again in a minute.")
    assert not Entry.objects.exists()


def test_ci_token_of_other_repository_needs_site_setting(
    oidc_server: Issuer, request_run: RequestRun, settings: Any
) -> None:
    token = oidc_server.create_token(repository="Trains/Other")
    for names, status in ((["else/where"], 401), (["trains/*"], 403), (["*"], 403), (["trains/other"], 403)):
        settings.GITHUB_OIDC_REPOSITORIES = names
        # 403: allowed, but not for the main repository
        assert request_run(token).status_code == status, names


@pytest.mark.usefixtures("rate_limit_clock")
def test_ci_tokens_with_unknown_key_fetch_keys_once_a_minute_and_are_limited(
    oidc_server: Issuer, request_run: RequestRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def request_with_key(kid: str) -> int:
        return request_run(oidc_server.create_token(kid=kid)).status_code

    def pass_minute() -> None:
        name = f"oidc-{oidc_server.url}"
        keys, fetched_at = caches["github"].get(name)
        caches["github"].set(name, (keys, fetched_at - 61))

    assert request_with_key("one") == 200
    assert [request_with_key("two") for _ in range(3)] == [401] * 3
    assert len(oidc_server.requests) == 2
    pass_minute()
    oidc_server.status = 502
    assert [request_with_key("two") for _ in range(3)] == [503] * 3, "a fetch that failed is not repeated"
    assert len(oidc_server.requests) == 3
    assert request_with_key("one") == 200, "its key is known"
    oidc_server.status, oidc_server.published_keys = 200, ["one", "two"]
    caches["github"].delete(f"oidc-{oidc_server.url}-problem")
    pass_minute()
    assert request_with_key("two") == 200
    monkeypatch.setitem(rate_limits.PER_MINUTE, "read", 1)
    assert request_with_key("three") == 429


@pytest.mark.parametrize("fault", ["down", "status", "another issuer", "keys elsewhere"])
def test_ci_token_while_keys_are_unavailable_gets_503(
    oidc_server: Issuer, request_run: RequestRun, settings: Any, fault: str
) -> None:
    token = oidc_server.create_token()
    if fault == "down":
        settings.GITHUB_OIDC_ISSUER = "http://127.0.0.1:9"
    elif fault == "status":
        oidc_server.status = 502
    elif fault == "another issuer":
        oidc_server.configuration = {"issuer": "https://elsewhere.example"}
    else:
        oidc_server.configuration = {"jwks_uri": "https://elsewhere.example/jwks"}
    response = request_run(token)
    assert (response.status_code, response["Retry-After"]) == (503, "60")
    assert response.json()["detail"].endswith("No run was created. Try again in a minute.")
    oidc_server.status, oidc_server.configuration, settings.GITHUB_OIDC_ISSUER = 200, {}, oidc_server.url
    caches["github"].delete(f"oidc-{oidc_server.url}-problem")  # as after a minute
    assert request_run(token).status_code == 200


ACTION = REPOSITORY / ".github" / "actions" / "train"


@pytest.fixture
def job_environment(
    oidc_server: Issuer,
    live_server: Any,
    main_repository: Repository,
    track: Track,
    instant_outbox: None,
    settings: Any,
    tmp_path: Path,
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
