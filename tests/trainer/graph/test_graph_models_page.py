"""The figures of docs/reference/graph-models.md are those of the architectures."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.support.architectures import PUBLIC_ARCHITECTURES, load_public_architecture
from tests.support.paths import REPOSITORY
from trainer.graph.summary import describe_traced
from trainer.graph.trace import trace_architecture

ROW = re.compile(r"^\| `(\w+)` \| [^|]+ \| ([\d,–]+) \| ([^|]+) \|", re.MULTILINE)
FIGURES = {
    name: (calls, flops)
    for name, calls, flops in ROW.findall((REPOSITORY / "docs/reference/graph-models.md").read_text("utf-8"))
}
MEASURED = [name for name, (calls, _) in FIGURES.items() if calls != "–"]
DEPTH, WIDTH, LENGTH, VOCABULARY = 4, 256, 256, 512


def test_page_has_a_row_for_each_public_architecture() -> None:
    assert set(FIGURES) == set(PUBLIC_ARCHITECTURES)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_page_has_calls_and_flops_of_the_architecture(name: str) -> None:
    module = load_public_architecture(name)
    config = dataclasses.replace(module.Config.sized(DEPTH, VOCABULARY, LENGTH), width=WIDTH)
    found = describe_traced(trace_architecture(module, config))
    calls = sum(sum(found["calls"][part].values()) for part in ("features", "logits"))
    products = found["product_flops_per_token"] / 1e6
    other = found["flops_per_token"] / 1e6 - products
    assert FIGURES[name] == (str(calls), f"{products:.1f} + {other:.2f}")
