"""What GitHub told is worked through in its order, once each, whatever dies on the way, and whatever it may say."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import F
from django.test import Client
from django.utils.module_loading import import_string
from hypothesis import HealthCheck, given
from hypothesis import settings as thoroughness
from hypothesis import strategies as st

from leaderboard.integrations.github import client as github_client
from leaderboard.integrations.github import deliveries
from leaderboard.integrations.github.connection import NotConnectedError
from leaderboard.integrations.github.deliveries import EVENTS
from leaderboard.models import Delivery, Installation, PullRequest
from leaderboard.outbox import PermanentError, RetryLater
from tests.support import github_payloads as payloads
from tests.support.github_server import INSTALLATION, GitHub

REPOSITORY = payloads.repository("trains/daily")


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch, db: None) -> list[Any]:
    """What a handler of the event `star` was given; a delivery's `trouble` is raised instead."""
    seen: list[Any] = []
    troubles = {
        "killed": Killed(),
        "later": RetryLater("busy"),
        "limit": RetryLater("limit", timedelta(minutes=10)),
        "refused": PermanentError("no"),
        "wrong": RuntimeError("odd"),
    }

    def handle(payload: dict[str, Any], installation: int | None) -> str | None:
        seen.append(payload["n"])
        if trouble := payload.get("trouble"):
            raise troubles[trouble]
        return payload.get("problem")

    monkeypatch.setitem(EVENTS, "star", "anywhere")
    monkeypatch.setattr(deliveries, "import_string", lambda event: handle)
    return seen


def arrive(number: int, about: str = "trains/daily", **fields: Any) -> Delivery:
    payload = {"n": number, "repository": {"full_name": about}, **fields}
    kept = deliveries.store_delivery(str(uuid4()), "star", json.dumps(payload).encode(), payload)
    assert kept
    return kept


def later(seconds: float) -> None:
    span = timedelta(seconds=seconds)
    Delivery.objects.update(not_before=F("not_before") - span, claimed_until=F("claimed_until") - span)


def states() -> list[str]:
    return list(Delivery.objects.order_by("pk").values_list("state", flat=True))


def test_deliveries_are_worked_through_in_their_order(handled: list[Any]) -> None:
    for number in range(4):
        arrive(number, f"trains/{number % 2}")
    assert deliveries.process_due() == 4
    assert [number for number in handled if number % 2 == 0] == [0, 2]
    assert [number for number in handled if number % 2] == [1, 3]
    assert states() == ["done"] * 4
    assert deliveries.process_due() == 0


def test_what_means_nothing_to_us_is_ignored_with_the_reason(handled: list[Any]) -> None:
    arrive(1, problem="Another repository.")
    deliveries.process_due()
    assert Delivery.objects.values_list("state", "problem").get() == ("ignored", "Another repository.")


def test_while_one_is_being_worked_on_what_follows_about_the_same_thing_waits(handled: list[Any]) -> None:
    arrive(1, trouble="killed")
    arrive(2)
    arrive(3, "trains/other")
    with pytest.raises(Killed):
        deliveries.process_due()
    assert deliveries.process_due() == 1
    assert handled == [1, 3]
    later(deliveries.CLAIM_TIME.total_seconds() + 1)
    Delivery.objects.filter(payload__n=1).update(payload={"n": 1, "repository": {"full_name": "trains/daily"}})
    assert deliveries.process_due() == 2
    assert handled == [1, 3, 1, 2]


def test_what_goes_wrong_is_tried_again_and_given_up_in_the_end(handled: list[Any]) -> None:
    arrive(1, trouble="wrong")
    for attempt in range(deliveries.MAX_ATTEMPTS):
        assert states() == ["new"]
        assert deliveries.process_due() == 1, attempt
        assert deliveries.process_due() == 0
        later(3601)
    assert Delivery.objects.values_list("state", "problem").get() == ("failed", "RuntimeError: odd")
    assert deliveries.process_due() == 0


def test_a_delivery_that_fails_does_not_hold_up_the_next(handled: list[Any]) -> None:
    arrive(1, trouble="wrong")
    arrive(2)
    deliveries.process_due()
    assert handled == [1, 2]
    assert states() == ["new", "done"]


def test_a_limit_is_no_failed_attempt(handled: list[Any]) -> None:
    arrive(1, trouble="limit")
    for _ in range(3 * deliveries.MAX_ATTEMPTS):
        assert deliveries.process_due() == 1
        later(599)
        assert deliveries.process_due() == 0
        later(1)
    assert Delivery.objects.values_list("state", "attempts").get() == ("new", 0)


def test_what_is_refused_is_not_tried_again(handled: list[Any]) -> None:
    arrive(1, trouble="refused")
    deliveries.process_due()
    later(10**6)
    assert deliveries.process_due() == 0
    assert Delivery.objects.values_list("state", "problem").get() == ("failed", "no")


def test_payloads_are_forgotten_after_a_while_but_not_before_they_were_read(handled: list[Any]) -> None:
    arrive(1)
    deliveries.process_due()
    arrive(2)
    arrive(3, trouble="refused")
    Delivery.objects.update(received_at=F("received_at") - deliveries.PAYLOAD_RETENTION - timedelta(hours=1))
    assert deliveries.delete_old_payloads() == 1
    assert [bool(payload) for payload in Delivery.objects.order_by("pk").values_list("payload", flat=True)] == [
        False,
        True,
        True,
    ]


def test_every_event_has_a_handler() -> None:
    assert {"pull_request", "issue_comment", "check_run", "installation", "installation_repositories"} <= set(EVENTS)
    for path in EVENTS.values():
        assert callable(import_string(path))


# --- installations ----------------------------------------------------------------------------------------------------


def installed(action: str, **fields: Any) -> Delivery:
    app = {"id": INSTALLATION, "account": payloads.user("trains", 9919, "Organization"), "suspended_at": None}
    payload = {"action": action, "installation": app, "sender": payloads.user("mara"), **fields}
    event = "installation_repositories" if "repositories_added" in fields else "installation"
    kept = deliveries.store_delivery(str(uuid4()), event, str(uuid4()).encode(), payload)
    assert kept
    deliveries.process_due()
    kept.refresh_from_db()
    return kept


def rows(*names: str) -> list[dict[str, Any]]:
    return [
        {"id": 1, "node_id": "R_1", "name": name, "full_name": f"trains/{name}", "private": False} for name in names
    ]


def test_the_site_knows_where_its_app_is_installed(github: GitHub) -> None:
    assert installed("created", repositories=rows("daily", "weekly"), requester=None).state == "done"
    app = Installation.objects.get(number=INSTALLATION)
    assert (app.account, app.repositories, app.suspended) == ("trains", ["trains/daily", "trains/weekly"], False)
    assert github_client.get_client("trains/daily")
    assert github.count("GET", "/installation$") == 0

    added, removed = rows("monthly"), rows("weekly")
    installed("added", repositories_added=added, repositories_removed=removed, repository_selection="selected")
    app.refresh_from_db()
    assert app.repositories == ["trains/daily", "trains/monthly"]

    for gone, back in (("suspend", "unsuspend"), ("deleted", "created")):
        installed(gone)
        with pytest.raises(NotConnectedError, match="suspended or was removed"):
            github_client.get_client("trains/daily")
        installed(back)
        assert github_client.get_client("trains/daily")
    installed("new_permissions_accepted")
    assert Installation.objects.count() == 1


def test_an_installation_for_an_enterprise_or_of_nobody_is_taken(db: None) -> None:
    payload = {"action": "created", "installation": {"id": 5, "account": {"slug": "rail", "id": 1}}}
    assert import_string(EVENTS["installation"])(payload, 5) is None
    assert Installation.objects.get().account == "rail"
    assert import_string(EVENTS["installation"])({"action": "renamed", "installation": {"id": 5}}, 5)
    assert import_string(EVENTS["installation_repositories"])({"action": "added"}, None)


# --- whatever GitHub documents ----------------------------------------------------------------------------------------

NULLABLE = (
    ("pull_request", "body"),
    ("pull_request", "user"),
    ("pull_request", "head", "repo"),
    ("pull_request", "head", "user"),
    ("pull_request", "head", "label"),
    ("pull_request", "base", "user"),
    ("pull_request", "draft"),
    ("pull_request", "merged"),
    ("pull_request", "mergeable"),
    ("pull_request", "maintainer_can_modify"),
)
"""Fields that may be null, beside those that are null in `payloads.pull` already."""
MAY_LACK = (
    ("installation",),
    *(
        ("pull_request", name)
        for name in (
            "active_lock_reason",
            "additions",
            "assignees",
            "auto_merge",
            "changed_files",
            "comments",
            "commits",
            "deletions",
            "draft",
            "maintainer_can_modify",
            "mergeable",
            "mergeable_state",
            "merged",
            "merged_by",
            "rebaseable",
            "requested_reviewers",
            "requested_teams",
            "review_comments",
        )
    ),
)
"""What some actions' payloads are without."""
TEAM = {"id": 1, "name": "Drivers", "slug": "drivers", "description": None, "privacy": "closed", "permission": "pull"}
LABEL = {"id": 1, "node_id": "LA_1", "name": "idea", "color": "f00", "default": False, "description": None}
MILESTONE = {"id": 1, "number": 1, "title": "Season 0", "description": None, "due_on": None, "closed_at": None}
MORE: dict[str, list[dict[str, Any]]] = {
    "assigned": [{"assignee": payloads.user("mara")}, {"assignee": None}],
    "unassigned": [{"assignee": payloads.user("mara")}, {"assignee": None}, {}],
    "auto_merge_disabled": [{"reason": "Head branch was pushed to"}],
    "auto_merge_enabled": [{"reason": "unknown"}, {}],
    "dequeued": [{"reason": "MANUAL"}],
    "edited": [
        {"changes": {}},
        {"changes": {"title": {"from": "Old"}}},
        {"changes": {"body": {"from": ""}}},
        {"changes": {"base": {"ref": {"from": "dev"}, "sha": {"from": "c" * 40}}}},
    ],
    "labeled": [{"label": LABEL}, {}],
    "unlabeled": [{"label": LABEL}, {}],
    "milestoned": [{"milestone": MILESTONE}],
    "demilestoned": [{"milestone": MILESTONE}],
    "review_requested": [{"requested_reviewer": payloads.user("mara")}, {"requested_team": TEAM}],
    "review_request_removed": [{"requested_reviewer": None}, {"requested_team": TEAM}],
    "synchronize": [{"before": "b" * 40, "after": "a" * 40}],
}
"""What an action adds to the payload, in its variants."""


@st.composite
def documented(draw: st.DrawFn, action: str) -> dict[str, Any]:
    """A `pull_request` payload of an action, with any of its nullable fields null and its optional ones missing."""
    number = draw(st.integers(1, 2**31 - 1))
    pull = payloads.pull(
        copy.deepcopy(REPOSITORY),
        number,
        draw(st.text("0123456789abcdef", min_size=40, max_size=40)),
        title=draw(st.text(max_size=256)),
        body=draw(st.none() | st.text(max_size=300)),
        draft=draw(st.booleans()),
        head=draw(st.none() | st.just(payloads.repository("ada/daily", number=2**40, fork=True))),
    )
    if action == "closed" or draw(st.booleans()):
        merged = draw(st.booleans())
        pull |= {"state": "closed", "closed_at": payloads.NOW, "merged": merged}
        pull |= {"merged_at": payloads.NOW, "merged_by": payloads.user("mara")} if merged else {}
    told = payloads.pull_request(action, pull, **draw(st.sampled_from(MORE.get(action, [{}]))))
    for path in draw(st.lists(st.sampled_from(NULLABLE), unique=True)):
        parent_of(told, path)[path[-1]] = None
    for path in draw(st.lists(st.sampled_from(MAY_LACK), unique=True)):
        parent_of(told, path).pop(path[-1], None)
    extras = {"organization": payloads.user("trains"), "enterprise": {"id": 1, "slug": "rail", "name": "Rail"}}
    return {**told, **{name: extras[name] for name in draw(st.lists(st.sampled_from(sorted(extras)), unique=True))}}


def parent_of(payload: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for name in path[:-1]:
        payload = payload[name]
    return payload


@pytest.fixture
def _no_git(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What follows from a pull request is done by effects, later: here none is carried out."""
    monkeypatch.setattr("leaderboard.outbox.notify_worker", lambda pk: None)
    return


@pytest.mark.parametrize("action", payloads.ACTIONS)
@pytest.mark.usefixtures("_no_git")
def test_any_pull_request_payload_that_github_documents_is_accepted(
    github: GitHub, client: Client, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def post(event: str, guid: str, body: bytes) -> int:
        """To the view itself, with GitHub's headers: a socket would leave the test's transaction."""
        told = github.headers(event, guid, body)
        kind = told.pop("Content-Type")
        return client.post("/github/webhook", body, content_type=kind, headers=told).status_code

    monkeypatch.setattr(github, "post", post)
    github.hook["url"] = "http://testserver/github/webhook"

    @given(documented(action))
    @thoroughness(max_examples=8, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    def holds(payload: dict[str, Any]) -> None:
        assert github.deliver("pull_request", {**payload, "salt": str(uuid4())}) == 202
        deliveries.process_due()
        kept = Delivery.objects.get(guid=github.deliveries[0]["guid"])
        assert (kept.state, kept.attempts) in {("done", 1), ("ignored", 1)}, kept.problem
        assert PullRequest.objects.filter(number=payload["number"]).exists()

    holds()


def told(event: str, payload: dict[str, Any]) -> tuple[str, int]:
    """Deliver it, and return what became of it, in how many attempts."""
    kept = deliveries.store_delivery(str(uuid4()), event, str(uuid4()).encode(), payload)
    assert kept
    deliveries.process_due()
    kept.refresh_from_db()
    return kept.state, kept.attempts


@pytest.mark.parametrize("action", ["created", "edited", "deleted", "pinned", "unpinned"])
@pytest.mark.parametrize("author", [None, payloads.user("ada"), payloads.user("dependabot[bot]", 7, "Bot")])
@pytest.mark.usefixtures("_no_git")
def test_any_comment_is_accepted(github: GitHub, action: str, author: dict[str, Any] | None) -> None:
    of = payloads.pull(REPOSITORY, 7, "a" * 40)
    for text in ("Nice idea", "/help", "/train smoke", "/no such thing", "", None):
        said = {**payloads.comment(REPOSITORY, 7, payloads.user(), text or ""), "user": author, "body": text}
        payload = payloads.issue_comment(action, of, said)
        payload["issue"] |= {"user": author, "milestone": None}
        assert told("issue_comment", payload) in {("done", 1), ("ignored", 1)}
        del payload["issue"]["pull_request"]  # then it is an issue's
        assert told("issue_comment", payload) == ("ignored", 1)


@pytest.mark.parametrize("action", ["created", "completed", "rerequested", "requested_action"])
@pytest.mark.usefixtures("_no_git")
def test_any_check_run_is_accepted(github: GitHub, action: str) -> None:
    check = {"id": 4, "name": "train", "head_sha": "a" * 40, "external_id": "", "status": "completed", "output": {}}
    check |= {"conclusion": None, "pull_requests": [], "app": None, "check_suite": {"id": 5, "head_branch": None}}
    payload = payloads.about(REPOSITORY, payloads.user(), INSTALLATION, action=action, check_run=check)
    for missing in ((), ("external_id",), ("check_suite", "app"), ("pull_requests",)):
        fields = {name: value for name, value in check.items() if name not in missing}
        assert told("check_run", {**payload, "check_run": fields}) in {("done", 1), ("ignored", 1)}
    without = {name: value for name, value in payload.items() if name != "installation"}
    assert told("check_run", without) in {("done", 1), ("ignored", 1)}
