from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scheduler.campaigns.models import Campaign
from tests.support.volunteers import fill_campaign, make_campaign


@pytest.fixture
def campaign(db: None, settings: Any, tmp_path: Path) -> Campaign:
    """A running campaign whose source is wholly in packets."""
    return fill_campaign(make_campaign(settings, tmp_path))
