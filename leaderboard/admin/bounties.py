"""Admin page of bounties."""

from __future__ import annotations

from django.contrib import admin
from django.db import models
from django.http import HttpRequest

from leaderboard.models import Bounty
from leaderboard.rankings import bounties
from scheduler.admin.base import ChangedFieldsAdmin, build_row_action


@admin.register(Bounty)
class BountyAdmin(ChangedFieldsAdmin):
    list_display = ("goal", "reward", "sponsor", "track", "state", "claimed_by", "claimed_at")
    list_select_related = ("track", "claimed_by")
    list_filter = ("state", "track")
    readonly_fields = ("state", "claimed_by", "claimed_at", "multiplier", "created_at")
    actions = ("withdraw", "reopen")
    formfield_overrides = {models.URLField: {"assume_scheme": "https"}}

    def has_delete_permission(self, request: HttpRequest, obj: Bounty | None = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Bounty | None = None) -> tuple[str, ...]:
        """The terms of a claimed bounty are fixed."""
        fixed = ("track", "above", "reward") if obj and obj.state == Bounty.State.CLAIMED else ()
        return (*self.readonly_fields, *fixed)

    withdraw = build_row_action("Withdraw, unless claimed", "Withdrawn", bounties.withdraw_bounty)
    reopen = build_row_action("Offer again", "Offered again", bounties.reopen_bounty)
