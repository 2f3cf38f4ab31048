"""Admin of nodes and jobs. States change through actions only, never by editing a row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers

from scheduler import node_tokens, pool, transitions
from scheduler.admin.base import ChangedFieldsAdmin, ReadOnlyAdmin, build_row_action
from scheduler.models import Job, JoinToken, Lease, Node, ResultCheck, Sponsor
from scheduler.node_health import request_self_test


@admin.register(Node)
class NodeAdmin(ChangedFieldsAdmin):
    list_display = ["name", "owner", "state", "fault", "reason", "trusted", "labels", "valid_in_a_row", "quota"]
    list_display += ["last_seen", "failures"]
    list_filter = ["state", "fault", "trusted"]
    search_fields = ["name"]
    # `labels` follows from `owner_labels`, which the node's settings page edits, and from what the node reports.
    readonly_fields = ["labels", "owner_labels", "state", "reason", "trusted", "valid_in_a_row", "quota", "hardware"]
    readonly_fields += ["last_seen", "rest_until", "fault", "failures", "self_tests"]
    fields = ["name", "owner", *readonly_fields]
    actions = ["trust", "distrust", "drain", "pause", "resume", "test", "ban", "revoke", "renew"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # nodes register themselves

    trust = build_row_action("Trust: may score", "Trusted", pool.trust_node)
    distrust = build_row_action("Trust no longer", "No longer trusted", pool.distrust_node)
    drain = build_row_action("Drain: finish this job, take no more", "Draining", pool.drain_node)
    pause = build_row_action("Pause: hand the job back at its next checkpoint", "Paused", pool.pause_node)
    resume = build_row_action("Resume", "Resumed", pool.resume_node)
    test = build_row_action("Test again: forgives faults so far", "To be tested", request_self_test)
    ban = build_row_action("Ban", "Banned", pool.ban_node)
    revoke = build_row_action("Revoke the token", "Revoked", node_tokens.revoke_node_token)

    @admin.action(description="Create a token to register again", permissions=["change"])
    def renew(self, request: HttpRequest, nodes: QuerySet[Node]) -> HttpResponse:
        return show_join_tokens(request, [(node.name, node_tokens.create_join_token(renews=node)) for node in nodes])


@admin.register(Sponsor)
class SponsorAdmin(ChangedFieldsAdmin):
    list_display = ["name", "user", "link", "since"]
    list_select_related = ["user"]
    readonly_fields = ["user", "since"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False  # created with the first lent node


class JoinTokenForm(forms.ModelForm):  # type: ignore[type-arg]
    hours = forms.FloatField(
        initial=node_tokens.JOIN_TOKEN_HOURS, min_value=0.1, max_value=24 * 90, help_text="Hours until it expires."
    )

    class Meta:
        model = JoinToken
        fields = ["owner", "labels", "trusted"]


@admin.register(JoinToken)
class JoinTokenAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    form = JoinTokenForm
    list_display = ["created_at", "expires_at", "owner", "labels", "trusted", "used_by"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"show_save_and_add_another": False, "show_save_and_continue": False, **(extra_context or {})}
        return super().add_view(request, form_url, context)

    def save_model(self, request: HttpRequest, obj: JoinToken, form: Any, change: bool) -> None:
        request.join_token = node_tokens.generate_token("join")  # type: ignore[attr-defined]
        obj.token_hash = node_tokens.hash_token(request.join_token)  # type: ignore[attr-defined]
        obj.expires_at = timezone.now() + timedelta(hours=form.cleaned_data["hours"])
        super().save_model(request, obj, form, change)

    def response_add(self, request: HttpRequest, obj: JoinToken, post_url_continue: str | None = None) -> HttpResponse:
        return show_join_tokens(request, [("New join token", request.join_token)])  # type: ignore[attr-defined]


def show_join_tokens(request: HttpRequest, tokens: list[tuple[str, str]]) -> HttpResponse:
    """Show join tokens in this response only. The database stores only their hashes."""
    context = {**admin.site.each_context(request), "title": "Join tokens", "tokens": tokens}
    context["can_list"] = request.user.has_perm("scheduler.view_jointoken")
    response = TemplateResponse(request, "admin/scheduler/jointoken/created.html", context)
    add_never_cache_headers(response)
    return response


@admin.register(Job)
class JobAdmin(ChangedFieldsAdmin):
    list_display = ["id", "kind", "state", "reason", "priority", "impact", "author"]
    list_display += ["attempts", "failures", "queued_at"]
    list_filter = ["state", "kind", "priority"]
    fields = ["kind", "state", "reason", "cause", "priority", "impact", "expected_seconds", "author", "max_attempts"]
    readonly_fields = ["kind", "state", "reason", "cause", "author"]
    actions = ["cancel", "hold", "queue", "hand_back", "raise_priority"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    cancel = build_row_action(
        "Cancel", "Cancelled", lambda job, actor: transitions.cancel_job(job, actor, f"{actor} cancelled it.")
    )
    hold = build_row_action(
        "Hold: keep back until queued again",
        "Held",
        lambda job, actor: transitions.hold_job(job, actor, f"{actor} holds it back."),
    )
    queue = build_row_action("Queue what is held", "Queued", transitions.queue_job)
    hand_back = build_row_action(
        "Take back from its node at the next checkpoint, and queue",
        "Requested",
        lambda job, actor: transitions.request_hand_back(job, actor, f"{actor} requested it back."),
    )
    raise_priority = build_row_action("Raise the priority by one step", "Raised", transitions.raise_priority)


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    list_display = ["id", "job", "node", "attempt", "state", "reason", "phase", "seconds", "started_at", "expires_at"]
    list_filter = ["state"]
    list_select_related = ["job", "node"]
    exclude = ["token_hash", "uploads", "spec"]  # a score's spec has the secret of its season


@admin.register(ResultCheck)
class ResultCheckAdmin(ReadOnlyAdmin):
    list_display = ["at", "node", "valid", "sentence", "job"]
    list_filter = ["valid"]
    list_select_related = ["node", "job"]
    ordering = ["-pk"]
