"""A node uploads at most so many bytes per second, all transfers together."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainer.cli.join_site import parse_rate
from trainer.node import client as site_client
from trainer.node.agent import Agent
from trainer.node.client import SiteClient, UploadRate, read_chunks
from trainer.sandbox import get_driver


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A fake clock that only `sleep` advances."""
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(site_client, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


def send(rate: UploadRate, size: int) -> list[int]:
    content = io.BufferedReader(io.BytesIO(bytes(size)))  # type: ignore[arg-type]
    return [len(chunk) for chunk in read_chunks(content, size, rate)]


def test_upload_takes_the_time_of_its_rate_in_steady_chunks(clock: list[float]) -> None:
    chunks = send(UploadRate(1_000_000), 10_000_000)
    assert sum(chunks) == 10_000_000
    assert set(chunks) == {250_000}
    assert clock[0] - 100 == pytest.approx(10, abs=0.3)


def test_two_clients_of_a_node_share_the_rate(clock: list[float]) -> None:
    first = SiteClient("http://127.0.0.1:1", "", upload_rate=UploadRate(1_000_000))
    second = first.with_token("lease")
    for client in (first, second):
        send(client.upload_rate, 5_000_000)
    assert clock[0] - 100 == pytest.approx(10, abs=0.3)
    first.close()


def test_upload_without_a_rate_does_not_wait(clock: list[float]) -> None:
    assert send(UploadRate(), 3 << 20) == [1 << 20] * 3
    assert clock == [100.0]


def test_rate_is_parsed_or_refused_with_a_reason() -> None:
    assert (parse_rate("20MB"), parse_rate("1.5MiB/s")) == (20_000_000, 1_572_864)
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        parse_rate("fast")
    with pytest.raises(argparse.ArgumentTypeError, match="too slow: give 100kB or more"):
        parse_rate("1kB")


@pytest.mark.parametrize(("measured", "limit", "expected"), [(None, 2e6, 2e6), (9e6, 2e6, 2e6), (1e6, 2e6, 1e6)])
def test_hardware_reports_the_slower_of_measured_rate_and_limit(
    tmp_path: Path, measured: float | None, limit: float, expected: float
) -> None:
    client = SiteClient("http://127.0.0.1:1", "token", upload_rate=UploadRate(int(limit)))
    if measured is not None:
        client.speed.record("up", int(measured), 1.0)
    found = Agent(client, tmp_path, get_driver("none"), ()).detect_hardware()
    assert found.network_bytes_per_second == expected
    client.close()
