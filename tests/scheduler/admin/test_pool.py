"""The node pool and the queue in the admin: actions, read-only state, tokens shown once."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler import node_tokens
from scheduler.models import Event, Job, JoinToken, Node
from tests.support.pool import Agent, create_job, create_node


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def run_admin_action(admin: Client, model: str, action: str, *rows: int) -> str:
    data = {"action": action, "_selected_action": list(rows)}
    response = admin.post(f"/admin/scheduler/{model}/", data, follow=True)
    assert response.status_code == 200
    return re.sub(r"\s+", " ", response.content.decode())


@pytest.mark.parametrize("model", ["node", "job", "lease", "event", "jointoken", "blob", "checkpoint"])
def test_pool_admin_pages_open(admin: Client, model: str) -> None:
    create_job()
    Agent(create_node()[1]).claim_job().upload_checkpoint(1)
    node_tokens.create_join_token()
    page = admin.get(f"/admin/scheduler/{model}/")
    assert page.status_code == 200
    for link in re.findall(rf'href="(/admin/scheduler/{model}/[^"/?]+/change/)"', page.content.decode()):
        assert admin.get(link).status_code == 200


def test_join_token_admin_shows_token_once(admin: Client) -> None:
    response = admin.post(
        "/admin/scheduler/jointoken/add/", {"labels": "[]", "hours": "2", "trusted": "on"}, follow=True
    )
    match = re.search(r"dtn_join_[\w-]{43}", response.content.decode())
    assert match
    assert JoinToken.objects.get(token_hash=node_tokens.hash_token(match[0])).trusted
    assert "dtn_join_" not in admin.get("/admin/scheduler/jointoken/").content.decode()


def test_node_actions_change_state(admin: Client) -> None:
    node, token = create_node()
    assert "Trusted: loco." in run_admin_action(admin, "node", "trust", node.pk)
    run_admin_action(admin, "node", "pause", node.pk)
    assert Agent(token).request_action().action == "pause"
    run_admin_action(admin, "node", "resume", node.pk)
    run_admin_action(admin, "node", "ban", node.pk)
    assert Agent(token).poll().status_code == 403
    run_admin_action(admin, "node", "revoke", node.pk)
    node.refresh_from_db()
    assert (node.trusted, node.state, node.token_hash) == (True, Node.State.BANNED, None)
    assert {event.actor for event in Event.objects.about(node)} == {"root", "node:loco"} - {"node:loco"}
    assert "dtn_join_" in run_admin_action(admin, "node", "renew", node.pk)


def test_job_actions_change_state(admin: Client) -> None:
    job = create_job()
    run_admin_action(admin, "job", "hold", job.pk)
    assert Job.objects.get().state == Job.State.HELD
    run_admin_action(admin, "job", "queue", job.pk)
    claimed_job = Agent(create_node()[1]).claim_job()
    run_admin_action(admin, "job", "hand_back", job.pk)
    assert Job.objects.get().stop_requested == "finish"
    run_admin_action(admin, "job", "cancel", job.pk)
    assert Job.objects.get().stop_requested == "cancel"
    claimed_job.finish("released")
    assert "Nothing to do for" in run_admin_action(admin, "job", "cancel", job.pk)
    assert Job.objects.get().state == Job.State.CANCELLED


def test_raise_priority_action_skips_finished_jobs(admin: Client) -> None:
    job = create_job(priority=Job.Priority.LADDER)
    priorities = []
    for _ in range(6):
        run_admin_action(admin, "job", "raise_priority", job.pk)
        priorities.append(Job.objects.get().priority)
    assert priorities == [40, 30, 20, 10, 10, 10]
    assert Event.objects.about(job).filter(sentence="Its priority is now nightly.").count() == 1
    Job.objects.update(state=Job.State.DONE, priority=40)
    assert "Nothing to do for" in run_admin_action(admin, "job", "raise_priority", job.pk)


def test_admin_state_field_is_read_only(admin: Client) -> None:
    node, _ = create_node()
    admin.post(
        f"/admin/scheduler/node/{node.pk}/change/", {"name": "x", "labels": "[]", "state": "banned", "trusted": "on"}
    )
    node.refresh_from_db()
    assert (node.name, node.state, node.trusted) == ("x", Node.State.NEW, False)
