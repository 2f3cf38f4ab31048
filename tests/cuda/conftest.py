"""Two processes share the predictions: those of `gpt`, and those of the other architectures."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group this folder's tests by what they predict, so that `--dist loadgroup` makes each prediction once."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            group = "gpt" if parameters.get("arch", "gpt") == "gpt" else "others"
            item.add_marker(pytest.mark.xdist_group(group))
