"""Bounties, subscriptions and the monthly train's diary in the admin. No subscriber's address is shown here either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest

from leaderboard.admin.entries import get_user
from leaderboard.models import Bounty, Month, Subscription, TrackHours
from leaderboard.rankings import bounties

if TYPE_CHECKING:
    BountyModelAdmin = admin.ModelAdmin[Bounty]
    SubscriptionModelAdmin = admin.ModelAdmin[Subscription]
    MonthModelAdmin = admin.ModelAdmin[Month]
    HoursInline = admin.TabularInline[TrackHours, Any]
else:
    BountyModelAdmin = SubscriptionModelAdmin = MonthModelAdmin = admin.ModelAdmin
    HoursInline = admin.TabularInline


class TrackHoursInline(HoursInline):
    """When jobs of a track may start."""

    model = TrackHours
    extra = 0


@admin.register(Bounty)
class BountyAdmin(BountyModelAdmin):
    list_display = ("goal", "reward", "sponsor", "track", "state", "claimed_by", "claimed_at")
    list_select_related = ("track", "claimed_by")
    list_filter = ("state", "track")
    readonly_fields = ("state", "claimed_by", "claimed_at", "multiplier", "created_at")
    actions = ("withdraw", "reopen")
    formfield_overrides = {models.URLField: {"assume_scheme": "https"}}

    def has_delete_permission(self, request: HttpRequest, obj: Bounty | None = None) -> bool:
        return False

    def get_readonly_fields(self, request: HttpRequest, obj: Bounty | None = None) -> tuple[str, ...]:
        """A promise that somebody has met is not changed any more."""
        fixed = ("track", "above", "reward") if obj and obj.state == Bounty.State.CLAIMED else ()
        return (*self.readonly_fields, *fixed)

    @admin.action(description="Withdraw", permissions=["change"])
    def withdraw(self, request: HttpRequest, queryset: QuerySet[Bounty]) -> None:
        done = sum(bounties.withdraw_bounty(bounty, get_user(request).get_username()) for bounty in queryset)
        self.message_user(request, f"{done} withdrawn. What has been claimed stays so.")

    @admin.action(description="Offer again", permissions=["change"])
    def reopen(self, request: HttpRequest, queryset: QuerySet[Bounty]) -> None:
        done = sum(bounties.reopen_bounty(bounty, get_user(request).get_username()) for bounty in queryset)
        self.message_user(request, f"{done} offered again.")


@admin.register(Subscription)
class SubscriptionAdmin(SubscriptionModelAdmin):
    list_display = ("user", "kind", "topics", "confirmed_at", "stopped_at", "problem", "sent_at")
    list_select_related = ("user",)
    list_filter = ("kind",)
    fields = readonly_fields = (
        *("user", "kind", "topics", "created_at", "confirmed_at"),
        *("stopped_at", "problem", "sent_at"),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(Month)
class MonthAdmin(MonthModelAdmin):
    list_display = ("date", "track", "sentence")
    list_select_related = ("track",)
    fields = readonly_fields = ("date", "track", "runs", "sentence", "created_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Month | None = None) -> bool:
        return False
