"""Requests made from our OpenAPI documents: no 500, no status, type or body that the document does not name.

FUZZ_CASES is their number over all operations: 10,000 by `make fuzz`, by default 1,000 on PostgreSQL and 150 on SQLite.
CI does both. PostgreSQL refuses more values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from django.core.cache import cache
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, connection
from django.urls import get_resolver
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.transport.wsgi import WSGI_TRANSPORT

from dailytrain import urls  # noqa: F401 (completes the node API)
from leaderboard.api import api
from scheduler import node_tokens
from scheduler.node_api.routes import node_api
from tests.support import scene
from tests.support.pool import Agent, create_job, create_node
from tests.support.routes import list_patterns

DEFAULT_CASES = 1000 if connection.vendor == "postgresql" else 150
CASES = int(os.environ.get("FUZZ_CASES", DEFAULT_CASES))
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)
SCHEMAS = {
    name: schemathesis.openapi.from_dict(served.get_openapi_schema())
    for name, served in {"public": api, "node": node_api}.items()
}
OPERATIONS = [(name, result.ok()) for name, schema in SCHEMAS.items() for result in schema.get_all_operations()]
EXAMPLES = math.ceil(CASES / len(OPERATIONS))

pytestmark = [pytest.mark.django_db, pytest.mark.slow, pytest.mark.services, pytest.mark.timeout(7200)]


@pytest.fixture
def authorize(settings: Any) -> Iterator[Callable[[Case], None]]:
    """Fill the site; yield a function that puts valid tokens and the lease's number into a request."""
    settings.JOB_KINDS = {**settings.JOB_KINDS, "train": "tests.support.recording_handler.Recorder"}
    scene.create_night_board()
    create_job()
    agent = Agent(create_node()[1])
    claimed_job = agent.claim_job()
    tokens = {
        "JoinToken": node_tokens.create_join_token(),
        "NodeToken": agent.token,
        "LeaseToken": claimed_job.lease.token,
    }

    def put_tokens(case: Case) -> None:
        case.headers["Accept-Encoding"] = "identity"  # werkzeug does not decompress
        for requirement in case.operation.definition.raw.get("security", ()):
            for name in requirement:
                case.headers["Authorization"] = f"Bearer {tokens.get(name, '')}"
        if "lease_id" in case.path_parameters:
            case.path_parameters["lease_id"] = claimed_job.lease.lease

    # As in Django's own test client: a request does not close the test's connection.
    request_started.disconnect(close_old_connections)
    request_finished.disconnect(close_old_connections)
    yield put_tokens
    request_started.connect(close_old_connections)
    request_finished.connect(close_old_connections)


def test_each_openapi_document_of_the_site_has_cases() -> None:
    served = [route for route in list_patterns(get_resolver()) if route.endswith("openapi.json")]
    assert served == ["api/v1/openapi.json", "api/node/v1/openapi.json"]
    assert set(SCHEMAS) == {"public", "node"} == {name for name, _ in OPERATIONS}


@pytest.mark.parametrize(
    ("name", "operation"), OPERATIONS, ids=[f"{name} {operation.label}" for name, operation in OPERATIONS]
)
def test_generated_request_gets_a_documented_answer(
    name: str, operation: Any, authorize: Callable[[Case], None]
) -> None:
    application = get_wsgi_application()

    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Case) -> None:
        cache.clear()  # rate limits
        authorize(case)
        case.validate_response(WSGI_TRANSPORT.send(case, app=application), checks=CHECKS)

    check()
