"""Runs an action for several campaigns, so that an error of one does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable

from scheduler.campaigns.models import CampaignQuerySet

logger = logging.getLogger(__name__)


def sum_over_campaigns(action: Callable[[int], int], campaigns: CampaignQuerySet) -> int:
    """Return the sum of an action's results over the campaigns' IDs; log the errors."""
    total = 0
    for pk in campaigns.values_list("pk", flat=True):
        try:
            total += action(pk)
        except Exception:
            logger.exception("%s failed for campaign %d", action.__name__, pk)
    return total
