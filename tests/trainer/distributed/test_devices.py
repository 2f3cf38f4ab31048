"""Settings before the first use of a device."""

from __future__ import annotations

import os

import pytest

from trainer.distributed.devices import configure_allocator


@pytest.mark.parametrize(
    ("given", "expected"), [(None, "expandable_segments:True"), ("backend:native", "backend:native")]
)
def test_gpu_segments_grow_unless_the_environment_says_otherwise(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", given or "")
    if given is None:
        monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    configure_allocator("cuda")
    assert os.environ["PYTORCH_ALLOC_CONF"] == expected
