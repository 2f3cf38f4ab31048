from __future__ import annotations

import pytest

from trainer.sandbox import get_driver


@pytest.fixture(scope="session", autouse=True)
def sandbox() -> None:
    if reason := get_driver("bubblewrap").find_problem():
        pytest.skip(f"a night needs bubblewrap: {reason}")
