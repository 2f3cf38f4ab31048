"""What the site says on GitHub, over a real socket, and what it makes of GitHub's refusals."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import caches

from leaderboard.integrations.github import client, connection
from leaderboard.integrations.github.client import Client
from leaderboard.integrations.github.connection import NotConnectedError, NotFoundError
from leaderboard.models import Installation
from leaderboard.outbox import PermanentError, RetryLater
from tests.support import github_server
from tests.support.github_server import GitHub

SHA = "a" * 40


@pytest.fixture
def ours(github: GitHub) -> Client:
    """The App's client for a repository with one pull request."""
    github.open("trains/daily", 7, SHA, announce=False)
    return client.get_client("trains/daily")


@pytest.fixture
def plain(github: GitHub, settings: Any) -> Client:
    """The same with a plain token."""
    settings.GITHUB_APP_ID = settings.GITHUB_PRIVATE_KEY = ""
    settings.GITHUB_TOKEN = github_server.TOKEN
    github.open("trains/daily", 7, SHA, announce=False)
    return client.get_client("trains/daily")


def test_a_comment_is_written_found_rewritten_and_folded(ours: Client, github: GitHub) -> None:
    number = ours.create_comment(7, "All aboard")
    github.say("trains/daily", 7, "ada", "Thank you", announce=False)
    ours.edit_comment(number, "Departed")
    mine, hers = ours.list_comments(7)
    assert (mine.id, mine.body, mine.author, mine.is_own) == (number, "Departed", "daily-train[bot]", True)
    assert (hers.body, hers.author, hers.is_own) == ("Thank you", "ada", False)
    ours.minimize_comment(mine.node_id)
    assert github.minimised == {mine.node_id}
    ours.add_reaction(hers.id, "+1")
    ours.add_reaction(hers.id, "+1")
    assert github.repositories["trains/daily"].reactions == [(hers.id, "+1")]


def test_comments_are_read_to_the_last_page(ours: Client, github: GitHub) -> None:
    github.largest_page = 2
    for number in range(5):
        github.say("trains/daily", 7, "ada", f"{number}", announce=False)
    assert [said.body for said in ours.list_comments(7)] == ["0", "1", "2", "3", "4"]
    assert github.count("GET", "/issues/7/comments") == 3


def test_the_token_of_an_installation_is_asked_for_once(ours: Client, github: GitHub) -> None:
    ours.get_pull_request(7)
    ours.get_pull_request(7)
    client.get_client("trains/daily").create_comment(7, "Again")
    assert github.count("POST", "/access_tokens") == 1


def test_a_token_that_github_no_longer_takes_is_replaced(ours: Client, github: GitHub) -> None:
    ours.get_pull_request(7)
    github.tokens.clear()
    assert ours.create_comment(7, "Still here")
    assert github.count("POST", "/access_tokens") == 2


def test_what_has_not_changed_costs_nothing_of_the_limit(ours: Client, github: GitHub) -> None:
    first = ours.get_pull_request(7)
    left = github.remaining
    assert ours.get_pull_request(7) == first
    assert github.remaining == left
    assert github.asked[-1] == ("GET", "/repos/trains/daily/pulls/7", 304)
    github.change("edited", "trains/daily", 7, title="Another")
    assert ours.get_pull_request(7)["title"] == "Another"


def test_a_check_goes_from_queued_to_green(ours: Client, github: GitHub) -> None:
    made = ours.update_check(SHA, "train", status="queued", title="Waiting", external_id="entry-1")
    ours.update_check(SHA, "train", status="in_progress", title="Half-way", external_id="entry-1", known=made)
    ours.update_check(
        SHA,
        "train",
        status="completed",
        conclusion="success",
        title="1.05x",
        external_id="entry-1",
        url="https://t.example",
    )
    (check,) = github.repositories["trains/daily"].checks.values()
    assert (check["id"], check["status"], check["conclusion"]) == (made, "completed", "success")
    assert check["output"] == {"title": "1.05x", "summary": "1.05x"}
    assert check["details_url"] == "https://t.example"


def test_a_check_whose_making_was_not_noted_is_found_and_not_doubled(ours: Client, github: GitHub) -> None:
    github.fail(502, path="/check-runs", method="POST", after=True)
    with pytest.raises(RetryLater, match="502"):
        ours.update_check(SHA, "train", status="queued", title="Waiting", external_id="entry-1")
    other = ours.update_check(SHA, "train", status="queued", title="Waiting", external_id="entry-2")
    again = ours.update_check(SHA, "train", status="queued", title="Waiting", external_id="entry-1")
    assert set(github.repositories["trains/daily"].checks) == {other, again}


def test_with_a_plain_token_a_check_is_a_commit_status(plain: Client, github: GitHub) -> None:
    plain.update_check(SHA, "train", status="in_progress", title="x" * 200, url="https://t.example")
    plain.update_check(SHA, "train", status="completed", conclusion="failure", title="It diverged")
    plain.update_check(SHA, "train", status="completed", conclusion="neutral", title="Cancelled")
    statuses = github.repositories["trains/daily"].statuses
    assert [row["state"] for row in statuses] == ["pending", "failure", "success"]
    assert len(statuses[0]["description"]) == 140
    assert not github.repositories["trains/daily"].checks


def test_with_a_plain_token_the_site_writes_as_its_owner(plain: Client, github: GitHub) -> None:
    plain.create_comment(7, "Mine")
    (said,) = plain.list_comments(7)
    assert (said.author, said.is_own, plain.get_login()) == ("mara", True, "mara")


@pytest.mark.parametrize("role", ["admin", "maintain", "write", "triage", "read", "none"])
def test_permissions_are_those_of_the_role(ours: Client, github: GitHub, role: str) -> None:
    github.repositories["trains/daily"].roles["ada"] = role
    assert ours.get_permission("ada") == role


def test_a_role_of_an_organisation_counts_as_what_it_is_built_on(ours: Client, github: GitHub) -> None:
    github.fail(200, path="/permission", body={"permission": "write", "role_name": "conductor"})
    assert ours.get_permission("ada") == "write"
    github.fail(404, "Not Found", path="/permission")
    assert ours.get_permission("nobody/../x") == "none"
    assert github.asked[-1][1].endswith("/collaborators/nobody%2F..%2Fx/permission")


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_primary_limit_that_is_used_up_is_waited_for(ours: Client, github: GitHub) -> None:
    github.remaining, github.reset = 0, int(time.time()) + 900
    with pytest.raises(RetryLater, match="rate limit exceeded") as limited:
        ours.get_pull_request(7)
    assert limited.value.after
    assert timedelta(minutes=14) < limited.value.after <= timedelta(minutes=15)


def test_while_a_limit_lasts_nothing_is_asked(ours: Client, github: GitHub) -> None:
    github.secondary_limit(120, path="/comments")
    with pytest.raises(RetryLater, match="secondary rate limit") as limited:
        ours.create_comment(7, "Too fast")
    assert limited.value.after == timedelta(seconds=120)
    asked = len(github.asked)
    with pytest.raises(RetryLater, match="secondary rate limit") as limited:
        client.get_client("trains/daily").get_pull_request(7)
    assert limited.value.after
    assert limited.value.after <= timedelta(seconds=120)
    assert len(github.asked) == asked
    caches["github"].clear()
    assert ours.create_comment(7, "Later")


def test_a_secondary_limit_without_a_time_is_waited_for_a_minute(ours: Client, github: GitHub) -> None:
    github.secondary_limit(None, path="/comments")
    with pytest.raises(RetryLater) as limited:
        ours.create_comment(7, "Too fast")
    assert limited.value.after == timedelta(minutes=1)


def test_a_429_is_a_limit_too(ours: Client, github: GitHub) -> None:
    github.fail(429, "Too many requests", path="/comments", Retry_After="7")
    with pytest.raises(RetryLater) as limited:
        ours.create_comment(7, "Too fast")
    assert limited.value.after == timedelta(seconds=7)


def test_a_clock_that_is_wrong_puts_nothing_off_for_longer_than_an_hour(ours: Client, github: GitHub) -> None:
    github.remaining, github.reset = 0, int(time.time()) + 10**6
    with pytest.raises(RetryLater) as limited:
        ours.get_pull_request(7)
    assert limited.value.after == timedelta(hours=1)


def test_the_limit_of_graphql_is_a_limit(ours: Client, github: GitHub) -> None:
    github.fail(200, path="/graphql", body={"errors": [{"type": "RATE_LIMITED", "message": "API rate limit exceeded"}]})
    with pytest.raises(RetryLater, match="GraphQL"):
        ours.minimize_comment("IC_1")


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "message", "error", "sentence"),
    [
        (
            401,
            "Bad credentials",
            PermanentError,
            "rejects the site's credentials: Bad credentials. Run manage.py connect_github",
        ),
        (403, "Resource not accessible by integration", PermanentError, "denies permission: Resource not accessible"),
        (404, "Not Found", NotFoundError, "does not have /repos/trains/daily/issues/7/comments"),
        (410, "Gone", NotFoundError, "does not have"),
        (422, "Validation Failed", PermanentError, "rejected the request: Validation Failed"),
        (451, "Blocked", PermanentError, "legal"),
        (500, "Server Error", RetryLater, "answered 500: Server Error"),
        (502, "Server Error", RetryLater, "answered 502"),
        (503, "Unavailable", RetryLater, "answered 503"),
    ],
)
def test_each_refusal_has_its_sentence(
    ours: Client, github: GitHub, status: int, message: str, error: type[Exception], sentence: str
) -> None:
    github.fail(status, message, path="/comments", times=9)
    with pytest.raises(error, match=sentence) as refused:
        ours.create_comment(7, "Hello")
    assert type(refused.value) is error


def test_a_422_says_which_field(ours: Client) -> None:
    with pytest.raises(PermanentError, match="Validation Failed: body missing_field"):
        ours.create_comment(7, " ")
    with pytest.raises(PermanentError, match="body is too long"):
        ours.create_comment(7, "x" * 70_000)


def test_a_comment_that_is_gone_is_not_found(ours: Client, github: GitHub) -> None:
    with pytest.raises(NotFoundError):
        ours.edit_comment(12, "Hello")
    with pytest.raises(NotFoundError, match="global id"):
        ours.minimize_comment("IC_12")


def test_an_answer_of_somebody_in_between_is_tried_again(ours: Client, github: GitHub) -> None:
    github.fail(200, path="/pulls/7", body=b"<html>Sign in to the hotel's network</html>")
    with pytest.raises(RetryLater, match="not JSON"):
        ours.get_pull_request(7)
    github.fail(502, path="/pulls/7", body=b"<html>Unicorn</html>")
    with pytest.raises(RetryLater, match="502: Bad Gateway"):
        ours.get_pull_request(7)


def test_a_github_that_cannot_be_reached_is_tried_again(ours: Client, settings: Any) -> None:
    settings.GITHUB_API_URL = "http://127.0.0.1:1"
    with pytest.raises(RetryLater, match="cannot be reached"):
        client.get_client("trains/daily").get_pull_request(7)


def test_the_token_goes_to_no_other_server(ours: Client, github: GitHub) -> None:
    github.fail(200, path="/comments", body=[], Link='<http://127.0.0.1:1/steal?page=2>; rel="next"')
    with pytest.raises(PermanentError, match="another server"):
        list(ours.list_comments(7))


def test_an_enterprise_server_has_graphql_beside_its_rest(ours: Client, github: GitHub) -> None:
    ours.connection.base = f"{github.url}/api/v3"
    with pytest.raises(NotFoundError):
        ours.minimize_comment("IC_1")
    assert github.asked[-1][1] == "/api/graphql"


# --- who we are -------------------------------------------------------------------------------------------------------


def test_without_credentials_the_site_is_not_connected(settings: Any, db: None) -> None:
    settings.GITHUB_APP_ID = settings.GITHUB_TOKEN = ""
    with pytest.raises(NotConnectedError, match=r"manage\.py connect_github"):
        client.get_client("trains/daily")


def test_an_app_that_is_not_installed_says_where(github: GitHub) -> None:
    github.repository("others/fork")
    with pytest.raises(NotConnectedError, match="not installed for others/fork"):
        client.get_client("others/fork")


def test_an_installation_is_asked_for_once_and_a_suspended_one_not_used(github: GitHub) -> None:
    client.get_client("trains/daily")
    client.get_client("Trains/daily")
    assert github.count("GET", "/installation$") == 1
    Installation.objects.update(suspended=True)
    with pytest.raises(NotConnectedError, match="suspended"):
        client.get_client("trains/daily")


def test_a_private_key_that_is_none_says_so(github: GitHub, settings: Any) -> None:
    settings.GITHUB_PRIVATE_KEY = "open sesame"
    with pytest.raises(NotConnectedError, match="PEM"):
        client.get_client("trains/daily")


def test_another_apps_key_is_refused(github: GitHub, settings: Any) -> None:
    settings.GITHUB_APP_ID = "12"
    with pytest.raises(PermanentError, match="JSON web token could not be decoded"):
        client.get_client("trains/daily")


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://github.com/trains/daily.git", "trains/daily"),
        ("https://github.com/trains/daily/", "trains/daily"),
        ("git@github.com:trains/daily.git", "trains/daily"),
        ("https://example.org/trains/daily.git", ""),
        ("/srv/daily", ""),
    ],
)
def test_the_main_repository_is_read_off_its_address(settings: Any, address: str, name: str) -> None:
    settings.GITHUB_REPOSITORY, settings.MAIN_REPOSITORY = "", address
    assert client.get_main_repository() == name


def test_answers_of_one_identity_are_not_shown_to_another(ours: Client, github: GitHub, settings: Any) -> None:
    ours.get_pull_request(7)
    settings.GITHUB_APP_ID, settings.GITHUB_TOKEN = "", github_server.TOKEN
    client.get_client("trains/daily").get_pull_request(7)
    assert github.asked[-1] == ("GET", "/repos/trains/daily/pulls/7", 200)
    assert connection.API_VERSION == "2022-11-28"
