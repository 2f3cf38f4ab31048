"""JSON files that other processes read while they are rewritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def atomic_write_json(file: Path, content: dict[str, Any]) -> None:
    """Write to a temporary file and rename it, so that a reader finds either the old content or the new."""
    temporary = file.with_name(f".{file.name}.partial")
    temporary.write_text(json.dumps(content, indent=1))
    temporary.replace(file)
