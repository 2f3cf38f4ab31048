"""The pool and the queue in the admin: actions change states, nothing else does, and tokens are shown once."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler import node_tokens
from scheduler.models import Event, Job, JoinToken, Node
from tests.support.pool import Agent, make_job, make_node


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def act(admin: Client, model: str, action: str, *rows: int) -> str:
    data = {"action": action, "_selected_action": list(rows)}
    answer = admin.post(f"/admin/scheduler/{model}/", data, follow=True)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", answer.content.decode())


@pytest.mark.parametrize("model", ["node", "job", "lease", "event", "jointoken", "blob", "checkpoint"])
def test_pool_admin_pages_open(admin: Client, model: str) -> None:
    make_job()
    Agent(make_node()[1]).work().checkpoint(1)
    node_tokens.create_join_token()
    page = admin.get(f"/admin/scheduler/{model}/")
    assert page.status_code == 200
    for link in re.findall(rf'href="(/admin/scheduler/{model}/[^"/?]+/change/)"', page.content.decode()):
        assert admin.get(link).status_code == 200


def test_join_token_admin_shows_token_once(admin: Client) -> None:
    answer = admin.post("/admin/scheduler/jointoken/add/", {"labels": "[]", "hours": "2", "trusted": "on"}, follow=True)
    found = re.search(r"dtn_join_[\w-]{43}", answer.content.decode())
    assert found
    assert JoinToken.objects.get(token_hash=node_tokens.hash_token(found[0])).trusted
    assert "dtn_join_" not in admin.get("/admin/scheduler/jointoken/").content.decode()


def test_node_actions_change_state(admin: Client) -> None:
    node, token = make_node()
    assert "Trusted: loco." in act(admin, "node", "trust", node.pk)
    act(admin, "node", "pause", node.pk)
    assert Agent(token).ask().action == "pause"
    act(admin, "node", "resume", node.pk)
    act(admin, "node", "ban", node.pk)
    assert Agent(token).poll().status_code == 403
    act(admin, "node", "revoke", node.pk)
    node.refresh_from_db()
    assert (node.trusted, node.state, node.token_hash) == (True, Node.State.BANNED, None)
    assert {event.actor for event in Event.objects.about(node)} == {"root", "node:loco"} - {"node:loco"}
    assert "dtn_join_" in act(admin, "node", "renew", node.pk)


def test_job_actions_change_state(admin: Client) -> None:
    job = make_job()
    act(admin, "job", "hold", job.pk)
    assert Job.objects.get().state == Job.State.HELD
    act(admin, "job", "queue", job.pk)
    work = Agent(make_node()[1]).work()
    act(admin, "job", "hand_back", job.pk)
    assert Job.objects.get().stop_requested == "finish"
    act(admin, "job", "cancel", job.pk)
    assert Job.objects.get().stop_requested == "cancel"
    work.finish("released")
    assert "Nothing to do for" in act(admin, "job", "cancel", job.pk)
    assert Job.objects.get().state == Job.State.CANCELLED


def test_raise_priority_action_skips_finished_jobs(admin: Client) -> None:
    job = make_job(priority=Job.Priority.LADDER)
    seen = []
    for _ in range(6):
        act(admin, "job", "raise_priority", job.pk)
        seen.append(Job.objects.get().priority)
    assert seen == [40, 30, 20, 10, 10, 10]
    assert Event.objects.about(job).filter(sentence="Its priority is now nightly.").count() == 1
    Job.objects.update(state=Job.State.DONE, priority=40)
    assert "Nothing to do for" in act(admin, "job", "raise_priority", job.pk)


def test_admin_state_field_is_read_only(admin: Client) -> None:
    node, _ = make_node()
    admin.post(
        f"/admin/scheduler/node/{node.pk}/change/", {"name": "x", "labels": "[]", "state": "banned", "trusted": "on"}
    )
    node.refresh_from_db()
    assert (node.name, node.state, node.trusted) == ("x", Node.State.NEW, False)
