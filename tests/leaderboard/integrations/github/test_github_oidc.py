"""A CI job asks for a run with GitHub's own word: real RS256 tokens, keys from a real socket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.core.cache import cache, caches
from django.test import Client

from leaderboard.models import Entry, Run, Track
from scheduler.models import Event
from tests.leaderboard.conftest import Repository
from tests.support import oidc_issuer
from tests.support.oidc_issuer import Issuer


@pytest.fixture
def issuer(settings: Any) -> Iterator[Issuer]:
    cache.clear()
    caches["github"].clear()
    with oidc_issuer.running() as running:
        settings.GITHUB_OIDC_ISSUER = running.url
        settings.GITHUB_OIDC_AUDIENCE = "http://127.0.0.1:8000"
        settings.GITHUB_OIDC_REPOSITORIES = []
        settings.GITHUB_REPOSITORY = "trains/daily"
        yield running
    caches["github"].clear()


@pytest.fixture
def wanted(main: Repository, track: Track, issuer: Issuer) -> dict[str, Any]:
    """What a job of the main repository asks for."""
    sha = main.git("rev-parse", "HEAD")
    issuer.claims["sha"] = sha
    return {"repository": str(main.path), "sha": sha, "architecture": "smear", "title": "Smeared keys"}


def ask(client: Client, token: str, wanted: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    return client.post("/api/v1/runs", wanted, content_type="application/json", headers=headers)


def test_a_job_that_github_vouches_for_gets_its_run(client: Client, issuer: Issuer, wanted: dict[str, Any]) -> None:
    answer = ask(client, issuer.token(), wanted)
    assert answer.status_code == 201, answer.json()
    run = Run.objects.get()
    assert answer.json()["run"] == run.pk
    assert (run.state, run.entry.author, run.entry.requested_by) == (Run.State.WAITING, "ada", None)
    assert "github:ada" in Event.objects.about(run.entry).values_list("actor", flat=True)
    again = ask(client, issuer.token(), wanted)
    assert (again.status_code, again.json()["run"]) == (200, run.pk)
    assert issuer.asked == ["/.well-known/openid-configuration", "/.well-known/jwks"]  # once for both


def test_whoever_set_it_off_is_known_by_his_number_on_github(
    client: Client, issuer: Issuer, wanted: dict[str, Any]
) -> None:
    ada = User.objects.create_user("ada-here")
    SocialAccount.objects.create(user=ada, provider="github", uid="77")
    assert ask(client, issuer.token(), wanted).status_code == 201
    entry = Entry.objects.get()
    assert (entry.requested_by, entry.author) == (ada, "ada-here")


HOUR = 3600


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"signed_by": "two"}, "The token's signature is not GitHub's."),
        ({"kid": "two"}, "The token is not signed by GitHub: its key is not known there."),
        ({"exp": int(time.time()) - HOUR}, "The token has expired: ask GitHub for it right before you ask here."),
        ({"nbf": int(time.time()) + HOUR}, "The token cannot be read: The token is not yet valid (nbf)."),
        ({"aud": "https://other.example"}, "with the audience http://127.0.0.1:8000."),
        ({"aud": ["a", "b"]}, "The token has another audience"),
        ({"iss": "https://token.actions.githubusercontent.com"}, "The token is not of http://127.0.0.1:"),
        ({"repository": "mallory/daily"}, "Jobs of mallory/daily may not ask here"),
        ({"repository": "trains/daily2"}, "Jobs of trains/daily2 may not ask here"),
        ({"event_name": "pull_request_target"}, "A job of the event pull_request_target may not ask for runs"),
        ({"event_name": "schedule"}, "A job of the event schedule may not ask for runs"),
        ({"without": "repository"}, "does not say its repository"),
        ({"without": "sha"}, "does not say its sha"),
        ({"without": "exp"}, 'The token cannot be read: Token is missing the "exp" claim.'),
        ({"without": "iss"}, 'The token cannot be read: Token is missing the "iss" claim.'),
    ],
)
def test_a_token_that_is_not_what_it_should_be_is_refused_with_a_sentence(
    client: Client, issuer: Issuer, wanted: dict[str, Any], changed: dict[str, Any], sentence: str
) -> None:
    answer = ask(client, issuer.token(**changed), wanted)
    assert answer.status_code == 401
    assert sentence in answer.json()["detail"]
    assert not Entry.objects.exists()


def test_a_token_that_signs_itself_is_refused(client: Client, issuer: Issuer, wanted: dict[str, Any]) -> None:
    claims = jwt.decode(issuer.token(), options={"verify_signature": False})
    public = issuer.public("one")["n"]
    forged = [
        jwt.encode(claims, None, algorithm="none", headers={"kid": "one"}),
        jwt.encode(claims, public, algorithm="HS256", headers={"kid": "one"}),
        jwt.encode(claims, oidc_issuer.key("one"), algorithm="RS512", headers={"kid": "one"}),
        issuer.token()[:-8] + "AAAAAAAA",
        "a.b.c",
        "..",
        f"{'x' * 20_000}.b.c",
    ]
    for token in forged:
        answer = ask(client, token, wanted)
        assert answer.status_code == 401, token[:60]
        assert answer.json()["detail"].startswith("The token")
    assert not Entry.objects.exists()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"sha": "1" * 40}, "The token is of commit"),
        ({"repository": "https://github.com/mallory/daily"}, "the request is for https://github.com/mallory/daily."),
        ({"repository": "https://127.0.0.1.example/trains/daily"}, "of trains/daily, and the request is for"),
    ],
)
def test_a_job_asks_for_its_own_commit_of_its_own_repository(
    client: Client, issuer: Issuer, wanted: dict[str, Any], changed: dict[str, Any], sentence: str
) -> None:
    answer = ask(client, issuer.token(), {**wanted, **changed})
    assert answer.status_code == 403
    assert sentence in answer.json()["detail"]
    assert not Entry.objects.exists()


def test_a_job_of_a_pull_request_asks_for_the_head_that_github_merged(
    client: Client, issuer: Issuer, main: Repository, wanted: dict[str, Any]
) -> None:
    """`sha` of its token is the merge, which nobody wants to train; its second parent is the head."""
    base = wanted["sha"]
    main.git("switch", "--quiet", "--create", "idea")
    head = main.commit("Idea", {"trainer/models/smear.py": "class Model:\n    better = True\n"})
    main.git("switch", "--quiet", "main")
    main.commit("Meanwhile", {"README.md": "Another train.\n"})
    main.git("merge", "--quiet", "--no-ff", "-m", "Merge", "idea")
    merge = main.git("rev-parse", "HEAD")
    job = {"event_name": "pull_request", "sha": merge, "ref": "refs/pull/7/merge"}
    assert ask(client, issuer.token(**job), {**wanted, "sha": head}).status_code == 201
    assert Entry.objects.get().sha == head
    for other in (base, main.git("rev-parse", "HEAD~1"), "1" * 40):
        answer = ask(client, issuer.token(**job), {**wanted, "sha": other})
        assert answer.status_code == 403, other
    pushed = ask(client, issuer.token(sha=merge), {**wanted, "sha": head})
    assert pushed.status_code == 403  # a push is of its own commit


def test_other_repositories_ask_where_the_site_names_them(
    client: Client, issuer: Issuer, wanted: dict[str, Any], settings: Any
) -> None:
    token = issuer.token(repository="Trains/Other")
    for names, status in ((["else/where"], 401), (["trains/*"], 403), (["*"], 403), (["trains/other"], 403)):
        settings.GITHUB_OIDC_REPOSITORIES = names
        assert ask(client, token, wanted).status_code == status, names  # 403: but not for the main repository


def test_a_new_key_is_found_and_an_unknown_one_is_not_asked_for_again_and_again(
    client: Client, issuer: Issuer, wanted: dict[str, Any]
) -> None:
    assert ask(client, issuer.token(), wanted).status_code == 201
    issuer.published = ["one", "two"]
    for _ in range(3):
        assert ask(client, issuer.token(kid="two"), wanted).status_code == 401
    assert len(issuer.asked) == 2
    name = f"oidc-{issuer.url}"
    keys, looked_at = caches["github"].get(name)
    caches["github"].set(name, (keys, looked_at - 61))
    assert ask(client, issuer.token(kid="two"), wanted).status_code == 200
    assert len(issuer.asked) == 4


@pytest.mark.parametrize("trouble", ["down", "status", "another issuer", "keys elsewhere"])
def test_while_githubs_keys_cannot_be_had_it_is_503(
    client: Client, issuer: Issuer, wanted: dict[str, Any], settings: Any, trouble: str
) -> None:
    token = issuer.token()
    if trouble == "down":
        settings.GITHUB_OIDC_ISSUER = "http://127.0.0.1:9"
    elif trouble == "status":
        issuer.status = 502
    elif trouble == "another issuer":
        issuer.about = {"issuer": "https://elsewhere.example"}
    else:
        issuer.about = {"jwks_uri": "https://elsewhere.example/jwks"}
    answer = ask(client, token, wanted)
    assert answer.status_code == 503
    assert answer.json()["detail"].endswith("No run was created. Try again in a minute.")
    issuer.status, issuer.about, settings.GITHUB_OIDC_ISSUER = 200, {}, issuer.url
    assert ask(client, token, wanted).status_code == 201


def test_a_site_may_take_none(client: Client, issuer: Issuer, wanted: dict[str, Any], settings: Any) -> None:
    settings.GITHUB_OIDC_ISSUER = ""
    answer = ask(client, issuer.token(), wanted)
    assert answer.status_code == 401
    assert "takes no tokens of GitHub Actions" in answer.json()["detail"]


def test_one_repository_asks_so_often_an_hour(client: Client, issuer: Issuer, wanted: dict[str, Any]) -> None:
    assert {ask(client, issuer.token(), wanted).status_code for _ in range(30)} == {201, 200}
    assert ask(client, issuer.token(actor="bob", actor_id="78"), wanted).status_code == 429
