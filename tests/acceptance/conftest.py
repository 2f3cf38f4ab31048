from __future__ import annotations

import pytest

from trainer.sandbox import driver


@pytest.fixture(scope="session", autouse=True)
def sandbox() -> None:
    if reason := driver("bubblewrap").why_not():
        pytest.skip(f"a night needs bubblewrap: {reason}")
