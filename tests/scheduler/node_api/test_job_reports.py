"""Metrics and log come in pieces that may come again, out of order, or never."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.models import LogChunk
from scheduler.node_api import job_reports
from tests.support.pool import Agent, Work, make_job, sentence
from trainer import protocol


@pytest.fixture
def work(agent: Agent) -> Work:
    make_job()
    return agent.work()


def received(answer: Any) -> int:
    assert answer.status_code == 200, answer.content
    return protocol.Acknowledgment.model_validate_json(answer.content).received


def log_of(work: Work) -> str:
    return "".join(LogChunk.objects.filter(lease=work.lease.lease).values_list("text", flat=True))


def test_repeated_metrics_batch_changes_nothing(work: Work, calls: list[Any]) -> None:
    first, second = [{"step": 1, "loss": 2.5}], [{"step": 2, "loss": 2.25}]
    answers = [
        received(work.metrics(number, rows)) for number, rows in [(1, first), (1, first), (2, second), (1, first)]
    ]
    assert answers == [1, 1, 2, 2]
    assert [rows for name, rows in calls if name == "metrics"] == [first, second]


def test_metrics_with_a_gap_are_rejected(work: Work, calls: list[Any]) -> None:
    answer = work.metrics(2)
    assert answer.status_code == 409
    assert sentence(answer) == "Expected batch 1, got 2."
    assert not [call for call in calls if call[0] == "metrics"]


def test_metrics_with_nan_or_nul_are_sanitized(work: Work, calls: list[Any]) -> None:
    row = '{"loss": NaN, "best": -Infinity, "steps": 123456789012345678901, "text": "a\\u0000b"}'
    assert received(work.call("/metrics", f'{{"sequence": 1, "rows": [{row}]}}')) == 1
    assert calls[-1] == ("metrics", [{"loss": None, "best": None, "steps": None, "text": "a?b"}])


def test_deeply_nested_metrics_are_rejected(work: Work) -> None:
    answer = work.call("/metrics", '{"sequence": 1, "rows": [{"a": ' + "[" * 100 + "]" * 100 + "}]}")
    assert answer.status_code == 422
    assert "nested" in sentence(answer)


def test_repeated_log_chunk_is_stored_once(work: Work) -> None:
    assert [received(work.log(*piece)) for piece in [(0, "über "), (0, "über "), (6, "all")]] == [6, 6, 9]
    assert log_of(work) == "über all"


def test_overlapping_log_chunk_stores_only_new_part(work: Work) -> None:
    assert received(work.log(0, "abcdef")) == 6
    assert received(work.log(3, "defghi")) == 9
    assert log_of(work) == "abcdefghi"


def test_log_chunk_after_a_gap_is_rejected(work: Work) -> None:
    assert work.log(5, "later").status_code == 409


def test_log_with_nul_bytes_has_correct_offsets(work: Work) -> None:
    assert received(work.log(0, "a\0b")) == 3
    assert log_of(work) == "a?b"


def test_log_over_limit_is_truncated_with_notice(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_reports, "MAX_LOG_BYTES", 10)
    assert [received(work.log(offset, "12345678")) for offset in (0, 8, 16, 24)] == [8, 16, 24, 32]
    assert log_of(work).startswith("1234567812345678\n[the log is longer than")
    assert LogChunk.objects.count() == 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(min_size=1, max_size=40), cuts=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=8)
)
def test_log_of_random_overlapping_chunks_is_complete(agent: Agent, text: str, cuts: list[tuple[int, int]]) -> None:
    LogChunk.objects.all().delete()
    make_job()
    work = agent.work()
    content = text.encode("ascii", "replace")
    here = 0
    for start, length in [*cuts, (0, len(content))]:
        start = min(start, here)
        here = received(work.log(start, content[start : start + length].decode()))
    assert log_of(work) == content.decode().replace("\0", "?")
    assert work.finish().status_code == 200
