"""Metrics batches and log chunks that are repeated, out of order, missing or invalid."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.models import LogChunk
from scheduler.node_api import job_reports
from tests.support.pool import Agent, ClaimedJob, create_job, read_error_detail
from trainer import protocol


def read_received_count(response: Any) -> int:
    assert response.status_code == 200, response.content
    return protocol.Acknowledgment.model_validate_json(response.content).received


def read_log(claimed_job: ClaimedJob) -> str:
    return "".join(LogChunk.objects.filter(lease=claimed_job.lease.lease).values_list("text", flat=True))


def test_repeated_metrics_batch_changes_nothing(claimed_job: ClaimedJob, calls: list[Any]) -> None:
    first, second = [{"step": 1, "loss": 2.5}], [{"step": 2, "loss": 2.25}]
    counts = [
        read_received_count(claimed_job.send_metrics(number, rows))
        for number, rows in [(1, first), (1, first), (2, second), (1, first)]
    ]
    assert counts == [1, 1, 2, 2]
    assert [rows for name, rows in calls if name == "metrics"] == [first, second]


def test_metrics_or_log_after_a_gap_and_deeply_nested_metrics_are_rejected(
    claimed_job: ClaimedJob, calls: list[Any]
) -> None:
    response = claimed_job.send_metrics(2)
    assert (response.status_code, read_error_detail(response)) == (409, "Expected batch 1, got 2.")
    assert claimed_job.send_log(5, "later").status_code == 409
    response = claimed_job.call("/metrics", '{"sequence": 1, "rows": [{"a": ' + "[" * 100 + "]" * 100 + "}]}")
    assert response.status_code == 422
    assert "nested" in read_error_detail(response)
    assert [name for name, _ in calls] == ["leased"]


def test_metrics_with_nan_or_nul_are_sanitized(claimed_job: ClaimedJob, calls: list[Any]) -> None:
    row = '{"loss": NaN, "best": -Infinity, "steps": 123456789012345678901, "text": "a\\u0000b"}'
    assert read_received_count(claimed_job.call("/metrics", f'{{"sequence": 1, "rows": [{row}]}}')) == 1
    assert calls[-1] == ("metrics", [{"loss": None, "best": None, "steps": None, "text": "a?b"}])


def test_log_over_limit_is_truncated_with_notice(claimed_job: ClaimedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_reports, "MAX_LOG_BYTES", 10)
    assert [read_received_count(claimed_job.send_log(offset, "12345678")) for offset in (0, 8, 16, 24)] == [
        8,
        16,
        24,
        32,
    ]
    assert read_log(claimed_job).startswith("1234567812345678\n[the log is longer than")
    assert LogChunk.objects.count() == 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(min_size=1, max_size=40), cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=8)
)
def test_log_of_random_overlapping_chunks_is_complete(agent: Agent, text: str, cuts: list[tuple[int, int]]) -> None:
    LogChunk.objects.all().delete()
    create_job()
    claimed_job = agent.claim_job()
    content = text.encode("ascii", "replace")
    offset = 0
    for start, length in [*cuts, (0, len(content))]:
        start = min(start, offset)
        offset = read_received_count(claimed_job.send_log(start, content[start : start + length].decode()))
    assert read_log(claimed_job) == content.decode().replace("\0", "?")
    assert claimed_job.finish().status_code == 200
