"""Run requests of CI jobs with GitHub's OIDC tokens: real RS256 tokens, keys from a real socket."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jwt
import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.core.cache import caches
from django.test import Client

from leaderboard.models import Entry, Track
from scheduler import rate_limits
from tests.leaderboard.conftest import Repository
from tests.support import oidc_issuer, run_requests
from tests.support.oidc_issuer import Issuer

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
