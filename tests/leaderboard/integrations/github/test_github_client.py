"""The GitHub client over a real socket: comments, checks, rate limits and error responses."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import caches

from leaderboard.integrations.github import client
from leaderboard.integrations.github.client import Client
from leaderboard.integrations.github.connection import NotConnectedError, NotFoundError
from leaderboard.models import Installation
from leaderboard.outbox import PermanentError, RetryLater
from tests.support import github_server
from tests.support.github_server import GitHub

pytestmark = pytest.mark.processes

SHA = "a" * 40


@pytest.fixture
def app_client(github: GitHub) -> Client:
    """The App's client for a repository with one pull request."""
    github.open_pull_request("trains/daily", 7, SHA, announce=False)
    return client.get_client("trains/daily")


def test_comments_on_several_pages_are_all_listed(app_client: Client, github: GitHub) -> None:
    github.largest_page = 2
    for number in range(5):
        github.post_comment("trains/daily", 7, "ada", f"{number}", announce=False)
    assert [comment.body for comment in app_client.list_comments(7)] == ["0", "1", "2", "3", "4"]
    assert github.count_requests("GET", "/issues/7/comments") == 3


def test_unchanged_resource_costs_no_rate_limit_for_the_same_identity(
    app_client: Client, github: GitHub, settings: Any
) -> None:
    first = app_client.get_pull_request(7)
    remaining = github.remaining
    assert app_client.get_pull_request(7) == first
    assert github.remaining == remaining
    assert github.requests[-1] == ("GET", "/repos/trains/daily/pulls/7", 304)
    client.get_client("Trains/daily")
    assert github.count_requests("POST", "/access_tokens") == github.count_requests("GET", "/installation$") == 1
    github.change_pull_request("edited", "trains/daily", 7, title="Another")
    assert app_client.get_pull_request(7)["title"] == "Another"
    settings.GITHUB_APP_ID, settings.GITHUB_TOKEN = "", github_server.TOKEN
    client.get_client("trains/daily").get_pull_request(7)
    assert github.requests[-1] == ("GET", "/repos/trains/daily/pulls/7", 200)


def test_check_whose_response_was_lost_is_not_duplicated(app_client: Client, github: GitHub) -> None:
    github.fail_requests(502, path="/check-runs", method="POST", after=True)
    with pytest.raises(RetryLater, match="502"):
        app_client.update_check(SHA, "train", status="queued", title="Waiting", external_id="entry-1")
    second_check = app_client.update_check(SHA, "train", status="queued", title="Waiting", external_id="entry-2")
    first_check = app_client.update_check(SHA, "train", status="queued", title="Waiting", external_id="entry-1")
    assert set(github.repositories["trains/daily"].checks) == {second_check, first_check}


def test_check_with_plain_token_is_a_commit_status(github: GitHub, settings: Any) -> None:
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = ""
    settings.GITHUB_TOKEN = github_server.TOKEN
    token_client = client.get_client("trains/daily")
    token_client.update_check(SHA, "train", status="in_progress", title="x" * 200, url="https://t.example")
    token_client.update_check(SHA, "train", status="completed", conclusion="failure", title="It diverged")
    token_client.update_check(SHA, "train", status="completed", conclusion="neutral", title="Cancelled")
    statuses = github.repositories["trains/daily"].statuses
    assert [row["state"] for row in statuses] == ["pending", "failure", "success"]
    assert len(statuses[0]["description"]) == 140
    assert not github.repositories["trains/daily"].checks


def test_permission_of_custom_role_is_its_base_role(app_client: Client, github: GitHub) -> None:
    github.fail_requests(200, path="/permission", body={"permission": "write", "role_name": "conductor"})
    assert app_client.get_permission("ada") == "write"
    github.fail_requests(404, "Not Found", path="/permission")
    assert app_client.get_permission("missing/../x") == "none"
    assert github.requests[-1][1].endswith("/collaborators/missing%2F..%2Fx/permission")


# --- limits ----------------------------------------------------------------------------------------------------------


def test_exhausted_limits_block_further_requests_until_they_are_reset(app_client: Client, github: GitHub) -> None:
    github.remaining, github.reset = 0, int(time.time()) + 900
    with pytest.raises(RetryLater, match="rate limit exceeded") as limited:
        app_client.get_pull_request(7)
    assert limited.value.after
    assert timedelta(minutes=14) < limited.value.after <= timedelta(minutes=15)
    caches["github"].clear()
    github.remaining = 5000
    github.apply_secondary_limit(120, path="/comments")
    with pytest.raises(RetryLater, match="secondary rate limit") as limited:
        app_client.create_comment(7, "Too fast")
    assert limited.value.after == timedelta(seconds=120)
    request_count = len(github.requests)
    with pytest.raises(RetryLater, match="secondary rate limit"):
        client.get_client("trains/daily").get_pull_request(7)
    assert len(github.requests) == request_count
    caches["github"].clear()
    assert app_client.create_comment(7, "Later")
    errors = {"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}]}
    github.fail_requests(200, path="/graphql", body=errors)
    with pytest.raises(RetryLater, match="GraphQL"):
        app_client.minimize_comment("IC_1")


# --- error responses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "message", "error", "sentence"),
    [
        (401, "Bad credentials", RetryLater, "credentials: Bad credentials. See docs/how-to/github.md"),
        (403, "Resource not accessible by integration", PermanentError, "denies permission: Resource not accessible"),
        (404, "Not Found", NotFoundError, "does not have /repos/trains/daily/issues/7/comments"),
        (410, "Gone", NotFoundError, "does not have"),
        (422, "Validation Failed", PermanentError, "rejected the request: Validation Failed"),
        (451, "Blocked", PermanentError, "legal"),
        (500, "Server Error", RetryLater, "answered 500: Server Error"),
    ],
)
def test_error_status_raises_matching_error(
    app_client: Client, github: GitHub, status: int, message: str, error: type[Exception], sentence: str
) -> None:
    github.fail_requests(status, message, path="/comments", times=9)
    with pytest.raises(error, match=sentence) as refused:
        app_client.create_comment(7, "Hello")
    assert type(refused.value) is error


def test_missing_comment_and_invalid_text_are_not_retried(app_client: Client, github: GitHub) -> None:
    with pytest.raises(NotFoundError):
        app_client.edit_comment(12, "Hello")
    with pytest.raises(PermanentError, match="Validation Failed: body missing_field"):
        app_client.create_comment(7, " ")
    with pytest.raises(NotFoundError, match="global id"):
        app_client.minimize_comment("IC_12")
    app_client.connection.base = f"{github.url}/api/v3"  # of GitHub's Enterprise Server
    with pytest.raises(NotFoundError):
        app_client.minimize_comment("IC_12")
    assert github.requests[-1][1] == "/api/graphql"


def test_response_of_a_proxy_or_no_response_is_retried(app_client: Client, github: GitHub, settings: Any) -> None:
    github.fail_requests(200, path="/pulls/7", body=b"<html>Sign in to the hotel's network</html>")
    with pytest.raises(RetryLater, match="not JSON"):
        app_client.get_pull_request(7)
    github.fail_requests(502, path="/pulls/7", body=b"<html>Unicorn</html>")
    with pytest.raises(RetryLater, match="502: Bad Gateway"):
        app_client.get_pull_request(7)
    settings.GITHUB_API_URL = "http://127.0.0.1:1"
    with pytest.raises(RetryLater, match="cannot be reached"):
        client.get_client("trains/daily").get_pull_request(7)


def test_client_without_usable_installation_is_refused(github: GitHub, settings: Any) -> None:
    github.get_or_create_repository("others/fork")
    with pytest.raises(NotConnectedError, match="not installed for others/fork"):
        client.get_client("others/fork")
    client.get_client("trains/daily")
    Installation.objects.update(suspended=True)
    with pytest.raises(NotConnectedError, match="suspended"):
        client.get_client("trains/daily")
    Installation.objects.all().delete()
    settings.GITHUB_PRIVATE_KEY = "open sesame"
    with pytest.raises(NotConnectedError, match="PEM"):
        client.get_client("trains/daily")


def test_next_link_to_other_server_is_refused(app_client: Client, github: GitHub) -> None:
    github.fail_requests(200, path="/comments", body=[], Link='<http://127.0.0.1:1/steal?page=2>; rel="next"')
    with pytest.raises(PermanentError, match="another server"):
        list(app_client.list_comments(7))
