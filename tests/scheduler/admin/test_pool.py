"""The admin of the pool: actions, read-only state, tokens shown once, and the audit log."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.admin import ModelAdmin
from django.contrib.auth.models import User
from django.forms import ModelForm
from django.http import HttpRequest
from django.test import Client

from scheduler import node_tokens, pool, transitions
from scheduler.models import Event, Job, JoinToken, Node, Sponsor
from tests.support.pool import Agent, create_job, create_node


def run_admin_action(admin_client: Client, model: str, action: str, *rows: int) -> str:
    data = {"action": action, "_selected_action": list(rows)}
    response = admin_client.post(f"/admin/scheduler/{model}/", data, follow=True)
    assert response.status_code == 200
    return re.sub(r"\s+", " ", response.content.decode())


@pytest.mark.parametrize("model", ["node", "job", "lease", "event", "jointoken"])
def test_pool_admin_pages_open(admin_client: Client, model: str) -> None:
    create_job()
    Agent(create_node()[1]).claim_job().upload_checkpoint(1)
    node_tokens.create_join_token()
    page = admin_client.get(f"/admin/scheduler/{model}/")
    assert page.status_code == 200
    for link in re.findall(rf'href="(/admin/scheduler/{model}/[^"/?]+/change/)"', page.content.decode()):
        assert admin_client.get(link).status_code == 200


def test_join_token_admin_shows_token_once(admin_client: Client) -> None:
    response = admin_client.post("/admin/scheduler/jointoken/add/", {"labels": "[]", "hours": "2", "trusted": "on"})
    token = read_token_shown_once(admin_client, response)
    assert JoinToken.objects.get(token_hash=node_tokens.hash_token(token)).trusted


def read_token_shown_once(admin_client: Client, response: Any) -> str:
    """Return the join token of a page that no cache, cookie or session stores."""
    match = re.search(r"dtn_join_[\w-]{43}", response.content.decode())
    assert match
    assert "no-store" in response["Cache-Control"]
    assert match[0] not in f"{response.cookies.output()}{dict(admin_client.session)}"
    assert "dtn_join_" not in admin_client.get("/admin/scheduler/jointoken/").content.decode()
    return match[0]


def test_node_actions_change_state(admin_client: Client) -> None:
    node, token = create_node()
    assert "Trusted: loco." in run_admin_action(admin_client, "node", "trust", node.pk)
    run_admin_action(admin_client, "node", "pause", node.pk)
    assert Agent(token).request_action().action == "pause"
    run_admin_action(admin_client, "node", "resume", node.pk)
    run_admin_action(admin_client, "node", "ban", node.pk)
    assert Agent(token).poll().status_code == 403
    run_admin_action(admin_client, "node", "revoke", node.pk)
    node.refresh_from_db()
    assert (node.trusted, node.state, node.token_hash) == (True, Node.State.BANNED, None)
    assert {event.actor for event in Event.objects.about(node)} == {"admin"}
    assert "dtn_join_" in run_admin_action(admin_client, "node", "renew", node.pk)


def test_job_actions_change_state(admin_client: Client) -> None:
    job = create_job()
    run_admin_action(admin_client, "job", "hold", job.pk)
    assert Job.objects.get().state == Job.State.HELD
    run_admin_action(admin_client, "job", "queue", job.pk)
    claimed_job = Agent(create_node()[1]).claim_job()
    run_admin_action(admin_client, "job", "hand_back", job.pk)
    assert Job.objects.get().stop_requested == "finish"
    run_admin_action(admin_client, "job", "cancel", job.pk)
    assert Job.objects.get().stop_requested == "cancel"
    claimed_job.finish("released")
    assert "Nothing to do for" in run_admin_action(admin_client, "job", "cancel", job.pk)
    assert Job.objects.get().state == Job.State.CANCELLED


def test_raise_priority_action_skips_finished_jobs(admin_client: Client) -> None:
    job, done = create_job(priority=Job.Priority.LADDER), create_job(priority=Job.Priority.COMMUNITY)
    priorities = []
    for _ in range(6):
        run_admin_action(admin_client, "job", "raise_priority", job.pk)
        priorities.append(Job.objects.get(pk=job.pk).priority)
    assert priorities == [40, 30, 20, 10, 10, 10]
    assert Event.objects.about(job).filter(sentence="Its priority is now nightly.").count() == 1
    transitions.cancel_job(done, "mara", "Not wanted.")
    assert "Nothing to do for" in run_admin_action(admin_client, "job", "raise_priority", done.pk)


def test_form_saved_during_a_state_change_keeps_the_new_state(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, (node, token) = create_job(), create_node()

    def change_rows_and_save(self: ModelAdmin[Any], request: HttpRequest, form: ModelForm[Any], change: bool) -> Any:
        """Change the rows after the admin has loaded them and before it saves one."""
        if Job.objects.get().state == Job.State.QUEUED:
            Agent(token).claim_job()
        else:
            pool.ban_node(Node.objects.get(), "mara", "It sent garbage.")
        return form.save(commit=False)

    monkeypatch.setattr(ModelAdmin, "save_form", change_rows_and_save)
    fields = {"priority": "10", "impact": "3", "expected_seconds": "60", "max_attempts": str(job.max_attempts)}
    assert admin_client.post(f"/admin/scheduler/job/{job.pk}/change/", fields).status_code == 302
    job.refresh_from_db()
    assert (job.state, job.priority, job.impact) == (Job.State.LEASED, 10, 3)
    assert (
        admin_client.post(f"/admin/scheduler/node/{node.pk}/change/", {"name": "x", "labels": "[]"}).status_code == 302
    )
    node.refresh_from_db()
    assert (node.name, node.state) == ("x", Node.State.BANNED)


@pytest.fixture
def logged_node(db: None) -> Node:
    node = Node.objects.create(name="cellar")
    Event.record("mara", node, "cellar is trusted.")
    Event.record("site", node, "cellar went offline.")
    old_event = Event.record("node:cellar", Node.objects.create(name="attic"), "attic joined.")
    Event.objects.filter(pk=old_event.pk).update(at=datetime(2026, 2, 3, 12, tzinfo=UTC))
    return node


def list_shown_messages(client: Client, query: str = "") -> list[str]:
    page = client.get(f"/admin/scheduler/event/?{query}").content.decode()
    return [
        event.sentence for event in Event.objects.order_by("-at", "-pk") if f'-sentence">{event.sentence}</td>' in page
    ]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("q=MARA", ["cellar is trusted."]),
        ("q=offline", ["cellar went offline."]),
        ("at__year=2026&at__month=2&at__day=3", ["attic joined."]),
        ("people=on", ["cellar is trusted."]),
        ("q=node", ["cellar went offline.", "cellar is trusted.", "attic joined."]),
        ("q=run", []),
        ("q=node+9999999999999999999999", ["cellar went offline.", "cellar is trusted.", "attic joined."]),
    ],
)
def test_audit_log_search_filters_events(
    admin_client: Client, logged_node: Node, query: str, expected: list[str]
) -> None:
    assert list_shown_messages(admin_client, query) == expected


def test_admin_deletion_records_event_and_none_is_in_bulk(admin_client: Client) -> None:
    sponsor = Sponsor.objects.create(user=User.objects.create_user("lena"), name="Lena")
    admin_client.post(f"/admin/scheduler/sponsor/{sponsor.pk}/delete/", {"post": "yes"})
    event = Event.objects.get(actor="admin")
    assert (event.target_kind, event.sentence) == ("sponsor", "Deleted Lena.")
    for page in ("leaderboard/track", "scheduler/jointoken", "auth/user"):
        assert "delete_selected" not in admin_client.get(f"/admin/{page}/").content.decode()
