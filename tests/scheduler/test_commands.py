"""Management commands of the pool."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils.module_loading import import_string

from dailytrain.schedule import INTERVAL_TASKS
from scheduler import node_tokens
from scheduler.models import JoinToken, Node
from tests.support.pool import Agent, create_node

pytestmark = pytest.mark.django_db


def run_command(*arguments: str) -> str:
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=StringIO())
    return out.getvalue().strip()


def test_join_token_command_prints_only_token_to_stdout() -> None:
    token = run_command("join_token", "--trusted", "--label", "h100", "--label", "mine")
    row = JoinToken.objects.get(token_hash=node_tokens.hash_token(token))
    assert (row.trusted, row.labels) == (True, ["h100", "mine"])
    for command in (("join_token", "--renew", "x"), ("node_state", "x", "drain")):
        with pytest.raises(CommandError, match="Unknown node 'x'"):
            run_command(*command)


def test_node_state_command_prints_new_state() -> None:
    _, token = create_node()
    assert run_command("node_state", "loco", "drain") == "loco is draining, not trusted."
    assert Agent(token).request_action().action == "stop"
    assert run_command("node_state", "loco", "pause", "--why", "Tonight I need it.") == "loco is paused, not trusted."
    assert Agent(token).request_action().reason == "Tonight I need it."
    assert run_command("node_state", "loco", "resume") == "loco is offline, not trusted."
    assert Agent(token).request_action().action == "idle"
    assert run_command("node_state", "loco", "trust") == "loco is online, trusted."
    assert run_command("node_state", "loco", "ban") == "loco is banned, trusted."
    assert Agent(token).poll().status_code == 403
    assert run_command("node_state", "loco", "revoke") == "loco is banned, trusted, without a token."
    assert Node.objects.get().token_hash is None


@pytest.mark.parametrize("name", [task for task, _ in INTERVAL_TASKS.values() if task.startswith("scheduler.")])
def test_scheduled_task_runs_on_an_empty_site(name: str) -> None:
    import_string(name)()
