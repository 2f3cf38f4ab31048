"""Admin pages of campaigns, packets and volunteers. States change only through the actions."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from scheduler.admin.base import (
    ChangedFieldsAdmin,
    ReadOnlyAdmin,
    ReadOnlyWithActions,
    apply_to_rows,
    build_row_action,
    get_actor_name,
)
from scheduler.campaigns import reputation, transitions, withdrawal
from scheduler.campaigns.models import Campaign, Contribution, Packet, Rephrasing, Shard, Volunteer
from scheduler.campaigns.transitions import CampaignError

SOURCE_FIELDS = ("source", "dataset", "config", "split", "revision", "text_field")
FILTER_FIELDS = ("min_characters", "language", "language_score", "drop_repeated", "quality_buckets")
REPHRASING_FIELDS = (
    *(
        "styles",
        "model",
        "model_revision",
        "temperature",
        "top_p",
        "top_k",
        "max_tokens",
        "prompt_version",
        "chunk_tokens",
    ),
    "thresholds",
)
ASSIGNMENT_FIELDS = (
    *("chunks_per_packet", "low_mark", "high_mark"),
    *("max_attempts", "replication_rate", "known_answer_rate"),
)
FROZEN_FIELDS = (
    *("slug", *SOURCE_FIELDS, *FILTER_FIELDS, *REPHRASING_FIELDS),
    *("license", "hub_name", "rows_per_shard", "chunks_per_packet", "replication_rate"),
)
"""Read-only after the start: they describe the texts that exist."""
STATUS_FIELDS = (
    *("state", "reason", "source_error", "rows_read", "packet_count", "chunk_count", "dropped_counts", "is_exhausted"),
)


class CampaignForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Campaign
        fields = "__all__"  # noqa: DJ007 (non-editable fields are not included)

    def clean(self) -> dict[str, Any]:
        """Report settings with which the campaign could not start."""
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors:
            frozen = {name: data.get(name, getattr(self.instance, name)) for name in FROZEN_FIELDS}
            try:
                transitions.validate_campaign(
                    Campaign(**frozen, low_mark=data["low_mark"], high_mark=data["high_mark"])
                )
            except CampaignError as error:
                raise forms.ValidationError(str(error)) from error
        return data


@admin.register(Campaign)
class CampaignAdmin(ChangedFieldsAdmin):
    form = CampaignForm
    list_display = ["name", "state", "reason", "rows_read", "packet_count", "is_exhausted", "source_error"]
    list_filter = ["state"]
    prepopulated_fields = {"slug": ["name"]}
    actions = ["start", "pause", "finish"]
    fieldsets = [
        (None, {"fields": ["name", "slug", "about", *STATUS_FIELDS]}),
        ("Source", {"fields": SOURCE_FIELDS}),
        ("Filters", {"fields": FILTER_FIELDS}),
        ("Rephrasing", {"fields": (*REPHRASING_FIELDS, "speculative_tokens", "needs_gigabytes")}),
        ("Publishing", {"fields": ["license", "hub_name", "rows_per_shard", "quarantine_minutes"]}),
        ("Assignment", {"fields": ASSIGNMENT_FIELDS}),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: Campaign | None = None) -> list[str]:
        is_started = obj is not None and obj.started_at is not None
        return [*STATUS_FIELDS, *(FROZEN_FIELDS if is_started else ())]

    def get_prepopulated_fields(self, request: HttpRequest, obj: Campaign | None = None) -> dict[str, Any]:
        return {} if obj is not None else self.prepopulated_fields

    def has_delete_permission(self, request: HttpRequest, obj: Campaign | None = None) -> bool:
        is_draft = obj is not None and obj.started_at is None
        return is_draft and super().has_delete_permission(request, obj)

    @admin.action(description="Start or resume", permissions=["change"])
    def start(self, request: HttpRequest, rows: QuerySet[Campaign]) -> None:
        actor = get_actor_name(request)
        try:
            apply_to_rows(self, request, rows, lambda row: transitions.start_campaign(row, actor), "Started")
        except CampaignError as error:
            self.message_user(request, str(error), messages.ERROR)

    pause = build_row_action("Pause: assign no packets", "Paused", transitions.pause_campaign)
    finish = build_row_action("Finish: leave out waiting packets", "Finished", transitions.finish_campaign)


@admin.register(Volunteer)
class VolunteerAdmin(ReadOnlyWithActions):
    list_display = ["name", "user", "node", "state", "reason", "agreements_in_a_row", "mismatches_in_a_row"]
    list_filter = ["state"]
    search_fields = ["name"]
    list_select_related = ["user", "node"]
    actions = ["trust", "ban", "unban"]

    trust = build_row_action("Trust: lift the hourly quota", "Trusted", reputation.trust_volunteer)
    ban = build_row_action("Ban, and withdraw all texts", "Banned", withdrawal.ban_and_withdraw)
    unban = build_row_action("Unban: start again as a new volunteer", "Unbanned", reputation.unban_volunteer)


@admin.register(Packet)
class PacketAdmin(ReadOnlyWithActions):
    list_display = ["id", "campaign", "document", "state", "replication", "attempts", "times_assigned", "missing"]
    list_filter = ["state", "replication", "campaign"]
    list_select_related = ["campaign"]
    show_full_result_count = False
    actions = ["retry"]

    @admin.action(description="Retry packets that were set aside", permissions=["change"])
    def retry(self, request: HttpRequest, rows: QuerySet[Packet]) -> None:
        set_aside = rows.filter(state=Packet.State.SET_ASIDE)
        campaigns = list(Campaign.objects.filter(pk__in=set_aside.order_by().values("campaign")))
        finished_early = [campaign for campaign in campaigns if transitions.is_finished_early(campaign)]
        for campaign in finished_early:
            self.message_user(request, f"{campaign} was finished early and stays done.", messages.WARNING)
        set_aside = set_aside.exclude(campaign__in=finished_early)
        count = set_aside.update(state=Packet.State.WAITING, attempts=0, times_assigned=0)
        for campaign in campaigns:
            if campaign not in finished_early:
                transitions.reopen_campaign(campaign)
        self.message_user(request, f"Packets to retry: {count}.", messages.SUCCESS if count else messages.WARNING)


@admin.register(Rephrasing)
class RephrasingAdmin(ReadOnlyAdmin):
    list_display = ["id", "campaign", "packet", "chunk", "style", "state", "reasons", "volunteer", "created_at"]
    list_filter = ["state", "style", "campaign"]
    list_select_related = ["campaign", "packet", "volunteer"]
    show_full_result_count = False
    ordering = ["-pk"]


@admin.register(Contribution)
class ContributionAdmin(ReadOnlyAdmin):
    list_display = ["campaign", "volunteer", "packets", "accepted", "rejected", "agreed", "disagreed", "rejection_rate"]
    list_filter = ["campaign"]
    list_select_related = ["campaign", "volunteer"]


@admin.register(Shard)
class ShardAdmin(ReadOnlyAdmin):
    list_display = ["campaign", "number", "rows", "version", "written_version", "published_sha256", "written_at"]
    list_filter = ["campaign"]
    list_select_related = ["campaign"]
