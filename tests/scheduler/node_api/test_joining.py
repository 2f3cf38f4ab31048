"""Registration of nodes: single use, expiry, renewal and hashing of tokens."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from scheduler import node_tokens
from scheduler.models import JoinToken, Node
from tests.support.pool import HARDWARE, Agent, create_job, create_node, read_error_detail
from trainer import protocol

pytestmark = pytest.mark.django_db


def post_registration(token: str, name: str = "loco", **fields: Any) -> Any:
    return Agent("").call("/register", protocol.Register(name=name, hardware=HARDWARE, **fields), token)


def read_registration(response: Any) -> protocol.RegisterReply:
    assert response.status_code == 200, response.content
    return protocol.RegisterReply.model_validate_json(response.content)


def test_join_token_registers_one_node() -> None:
    token = node_tokens.create_join_token()
    Agent(read_registration(post_registration(token)).token).request_action()
    response = post_registration(token, "second")
    assert response.status_code == 401
    assert "was used already" in read_error_detail(response)
    assert not Node.objects.get().trusted
    JoinToken.objects.update(used_at=timezone.now() - timedelta(hours=1))
    for late in (token, node_tokens.create_join_token(hours=-1), node_tokens.generate_token("join")):
        assert post_registration(late).status_code == 401
    assert Node.objects.count() == 1


def test_registration_may_be_repeated_by_the_same_machine_until_first_poll() -> None:
    token = node_tokens.create_join_token()
    first = read_registration(post_registration(token))
    other = HARDWARE.model_copy(update={"cpus": HARDWARE.cpus + 1})
    response = Agent("").call("/register", protocol.Register(name="loco", hardware=other), token)
    assert "was used already" in read_error_detail(response), "another machine"
    second = read_registration(post_registration(token))
    assert first.node == second.node
    assert Agent(first.token).poll().status_code == 401, "only the token of the last response is valid"
    assert Agent(second.token).poll().status_code == 200
    assert post_registration(token).status_code == 401


def test_deactivated_account_joins_and_runs_no_node() -> None:
    owner = User.objects.create_user("ada")
    node, token = create_node(owner=owner, trusted=True)
    create_job()
    job = Agent(token).claim_job()
    joins = [node_tokens.create_join_token(owner=owner, trusted=True), node_tokens.create_join_token(renews=node)]
    User.objects.update(is_active=False)
    responses = [Agent(token).poll(), job.send_heartbeat(), *(post_registration(join) for join in joins)]
    for response in responses:
        assert response.status_code == 403
        assert "deactivated" in read_error_detail(response)
    assert Node.objects.count() == 1


def test_tokens_are_hashed_in_every_table_and_have_prefixes() -> None:
    join = node_tokens.create_join_token()
    node = read_registration(post_registration(join)).token
    create_job()
    lease = Agent(node).claim_job().lease.token
    rows = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT * FROM "{table}"')  # noqa: S608
            rows += cursor.fetchall()
    for token, kind in [(join, "join"), (node, "node"), (lease, "lease")]:
        assert re.fullmatch(rf"dtn_{kind}_[\w-]{{43}}", token)
        assert token not in repr(rows)
