"""Campaigns, their packets and volunteers in the admin. States change only through the actions."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from scheduler.admin.base import ReadOnly, each, name_of
from scheduler.campaigns import reputation, transitions, withdrawal
from scheduler.campaigns.transitions import CampaignError
from scheduler.models import Campaign, Handout, Packet, Rephrasing, Shard, Share, Volunteer

MADE_WITH = (
    *("slug", "source", "dataset", "config", "split", "revision", "text_field", "min_characters", "language"),
    *("language_score", "drop_repeated", "buckets", "chunk_tokens", "chunks_per_packet", "styles", "model"),
    *("model_revision", "temperature", "top_p", "max_tokens", "prompt_version", "thresholds", "licence", "target"),
    *("rows_per_shard", "second_share"),
)
"""Fixed as soon as the campaign has begun: its texts say that they were made with this."""
FOUND = ("state", "reason", "trouble", "rows_read", "packets_made", "chunks_made", "dropped", "exhausted")


class CampaignForm(forms.ModelForm):  # type: ignore[type-arg]
    class Meta:
        model = Campaign
        fields = "__all__"  # noqa: DJ007 (what is not editable is not in it)

    def clean(self) -> dict[str, Any]:
        """Say now what would stand against starting it."""
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors:
            known = {name: data[name] for name in data if name in {field.name for field in Campaign._meta.fields}}
            told = Campaign(**{**{name: getattr(self.instance, name) for name in MADE_WITH}, **known})
            try:
                transitions.check(told)
            except CampaignError as error:
                raise forms.ValidationError(str(error)) from error
        return data


class CampaignAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = CampaignForm
    list_display = ["name", "state", "reason", "rows_read", "packets_made", "exhausted", "trouble"]
    list_filter = ["state"]
    prepopulated_fields = {"slug": ["name"]}
    actions = ["start", "pause", "finish"]
    fieldsets = [
        (None, {"fields": ["name", "slug", "about", *FOUND]}),
        ("Source", {"fields": ["source", "dataset", "config", "split", "revision", "text_field"]}),
        (
            "Left out",
            {"fields": ["min_characters", "language", "language_score", "drop_repeated", "buckets"]},
        ),
        (
            "Rephrased",
            {
                "fields": [
                    *("styles", "model", "model_revision", "temperature", "top_p", "max_tokens", "prompt_version"),
                    *("chunk_tokens", "thresholds", "needs_gigabytes"),
                ]
            },
        ),
        ("Published", {"fields": ["licence", "target", "rows_per_shard", "settle_minutes"]}),
        (
            "Handed out",
            {"fields": ["chunks_per_packet", "low_mark", "high_mark", "tries", "second_share", "known_share"]},
        ),
    ]

    def get_readonly_fields(self, request: HttpRequest, obj: Campaign | None = None) -> list[str]:
        begun = obj is not None and obj.started_at is not None
        return [*FOUND, *(MADE_WITH if begun else ())]

    def get_prepopulated_fields(self, request: HttpRequest, obj: Campaign | None = None) -> dict[str, Any]:
        return {} if obj is not None else self.prepopulated_fields

    def has_delete_permission(self, request: HttpRequest, obj: Campaign | None = None) -> bool:
        return obj is not None and obj.started_at is None

    @admin.action(description="Start, or go on", permissions=["change"])
    def start(self, request: HttpRequest, rows: QuerySet[Campaign]) -> None:
        try:
            each(self, request, rows, lambda row: transitions.start(row, name_of(request)), "Started")
        except CampaignError as error:
            self.message_user(request, str(error), messages.ERROR)

    @admin.action(description="Pause: nothing is handed out", permissions=["change"])
    def pause(self, request: HttpRequest, rows: QuerySet[Campaign]) -> None:
        each(self, request, rows, lambda row: transitions.pause(row, name_of(request)), "Paused")

    @admin.action(description="Done: leave out whatever still waits", permissions=["change"])
    def finish(self, request: HttpRequest, rows: QuerySet[Campaign]) -> None:
        each(self, request, rows, lambda row: transitions.finish(row, name_of(request)), "Done")


class VolunteerAdmin(ReadOnly):
    list_display = ["name", "user", "node", "state", "reason", "right_in_a_row", "wrong_in_a_row", "since"]
    list_filter = ["state"]
    search_fields = ["name"]
    list_select_related = ["user", "node"]
    actions = ["believe", "withdraw", "pardon"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and admin.ModelAdmin.has_change_permission(self, request)  # for the actions

    @admin.action(description="Known: may have as much as can be done", permissions=["change"])
    def believe(self, request: HttpRequest, rows: QuerySet[Volunteer]) -> None:
        why = f"{name_of(request)} knows them."
        each(self, request, rows, lambda row: reputation.believe(row, name_of(request), why), "Known")

    @admin.action(description="Bar, and withdraw all that was written", permissions=["change"])
    def withdraw(self, request: HttpRequest, rows: QuerySet[Volunteer]) -> None:
        def act(row: Volunteer) -> bool:
            barred = reputation.bar(row, name_of(request), f"{name_of(request)} withdrew what they wrote.")
            return bool(withdrawal.withdraw(row)) or barred

        each(self, request, rows, act, "Withdrawn")

    @admin.action(description="Let a barred volunteer begin anew", permissions=["change"])
    def pardon(self, request: HttpRequest, rows: QuerySet[Volunteer]) -> None:
        each(self, request, rows, lambda row: reputation.pardon(row, name_of(request)), "May write again")


class PacketAdmin(ReadOnly):
    """Those set aside are one filter away."""

    list_display = ["id", "campaign", "document", "state", "second", "tries", "handed_out", "lacking"]
    list_filter = ["state", "second", "campaign"]
    list_select_related = ["campaign"]
    show_full_result_count = False
    actions = ["try_again"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None and admin.ModelAdmin.has_change_permission(self, request)

    @admin.action(description="Try again what was set aside", permissions=["change"])
    def try_again(self, request: HttpRequest, rows: QuerySet[Packet]) -> None:
        again = rows.filter(state=Packet.State.ASIDE)
        pks = set(again.values_list("campaign", flat=True))
        count = again.update(state=Packet.State.WAITING, tries=0, handed_out=0)
        for campaign in Campaign.objects.filter(pk__in=pks):
            transitions.reopen(campaign)
        self.message_user(request, f"{count} wait again.", messages.SUCCESS if count else messages.WARNING)


class RephrasingAdmin(ReadOnly):
    """The newest; what was rejected is one filter away."""

    list_display = ["id", "campaign", "packet", "chunk", "style", "state", "reasons", "volunteer", "at"]
    list_filter = ["state", "style", "campaign"]
    list_select_related = ["campaign", "volunteer"]
    show_full_result_count = False
    ordering = ["-pk"]


class HandoutAdmin(ReadOnly):
    list_display = ["id", "packet_id", "volunteer", "purpose", "state", "reasons", "at", "answered_at"]
    list_filter = ["state", "purpose"]
    list_select_related = ["volunteer"]
    show_full_result_count = False
    ordering = ["-pk"]


class ShareAdmin(ReadOnly):
    list_display = ["campaign", "volunteer", "packets", "accepted", "rejected", "agreed", "disagreed", "failing"]
    list_filter = ["campaign"]
    list_select_related = ["campaign", "volunteer"]


class ShardAdmin(ReadOnly):
    list_display = ["campaign", "number", "rows", "version", "written", "published", "written_at"]
    list_filter = ["campaign"]
    list_select_related = ["campaign"]


ADMINS: dict[type[Model], type[admin.ModelAdmin[Any]]] = {
    Campaign: CampaignAdmin,
    Volunteer: VolunteerAdmin,
    Packet: PacketAdmin,
    Rephrasing: RephrasingAdmin,
    Handout: HandoutAdmin,
    Share: ShareAdmin,
    Shard: ShardAdmin,
}
"""Registered by `scheduler.admin.pool`."""
