"""A real text, and rephrasings of it as a model writes them, one for each style."""

from __future__ import annotations

import json
from pathlib import Path

GOOD: dict[str, str] = json.loads(Path(__file__).with_suffix(".json").read_text())
"""By style."""
SOURCE = GOOD.pop("source")
"""Charles Darwin, On the Origin of Species (1859), its first sentences."""
