"""Folders of the checkout that tests look for."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("DAILYTRAIN_DATA") or REPOSITORY.parent / "shared" / "data")
"""Real text, evaluation sets and tokenizers, which are not part of the repository."""
