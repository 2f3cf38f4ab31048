"""How a job that samples text from a swarm ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.errors import ExitCode, write_failure
from trainer.node.job_handlers.swarm import describe_sampling
from trainer.node.outcome import JobFailedError


def end_process(code: int, limit_error: str | None = None) -> Any:
    return SimpleNamespace(poll=lambda: code, limit_error=limit_error, is_out_of_time=False)


def test_swarm_without_text_does_not_blame_the_node(tmp_path: Path) -> None:
    write_failure(tmp_path, "order", "no worker is at stage 2")
    with pytest.raises(JobFailedError, match="no worker is at stage 2") as error:
        describe_sampling(end_process(ExitCode.USER_ERROR), tmp_path)
    assert error.value.fault == "order"


def test_sampling_beyond_a_limit_does_not_blame_the_node(tmp_path: Path) -> None:
    with pytest.raises(JobFailedError, match=r"It used too much memory\.$") as error:
        describe_sampling(end_process(-9, "It used too much memory."), tmp_path)
    assert error.value.fault == "order"


def test_crash_of_sampling_is_a_fault_of_the_node(tmp_path: Path) -> None:
    with pytest.raises(JobFailedError, match="Sampling from the swarm failed") as error:
        describe_sampling(end_process(1), tmp_path)
    assert error.value.fault == "machine"
