"""The queue of approvals: what waits, what each entry changes, and a maintainer's word about exactly that commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.views.decorators.http import require_POST

from leaderboard import permissions, runs
from leaderboard.models import Entry
from leaderboard.models.entries import web_address
from leaderboard.rankings.standings import compute_standings
from leaderboard.runs import RunError
from leaderboard.submissions import intake, review
from leaderboard.submissions.intake import IntakeError

if TYPE_CHECKING:
    EntryModelAdmin = admin.ModelAdmin[Entry]
else:
    EntryModelAdmin = admin.ModelAdmin

SEEDS_AT_ONCE = 10
"""What one click queues at most, however many seeds would settle it."""
DECIDED_SHOWN = 8


def get_user(request: HttpRequest) -> User:
    assert isinstance(request.user, User), "the admin lets in nobody else"
    return request.user


class DecisionForm(forms.Form):
    """What goes with an approval. Empty fields leave things as they are."""

    sha = forms.CharField(max_length=40)
    budget = forms.CharField(max_length=40, required=False)
    impact = forms.IntegerField(min_value=-1000, max_value=1000, required=False)


class EntryAdmin(EntryModelAdmin):
    """A decision is about the SHA that its page showed, never about "the entry"."""

    list_display = ("title", "short_sha", "architecture", "author", "kind", "state", "track", "created_at")
    list_filter = ("state", "kind", "track")
    search_fields = ("title", "author", "sha", "architecture")
    list_select_related = ("track",)
    readonly_fields = [
        field.name for field in Entry._meta.fields if field.name not in ("impact", "hypothesis", "title")
    ]
    actions = ("run_one_more_seed", "run_needed_seeds")
    change_list_template = "admin/leaderboard/entry/change_list.html"

    # --- who may what ------------------------------------------------------------------------------------------------

    def has_change_permission(self, request: HttpRequest, obj: Entry | None = None) -> bool:
        allowed = super().has_change_permission(request, obj)
        return allowed and (obj is None or permissions.can_approve(get_user(request), obj))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Entry | None = None) -> bool:
        return False

    # --- the list ----------------------------------------------------------------------------------------------------

    @admin.display(description="commit", ordering="sha")
    def short_sha(self, entry: Entry) -> str:
        return entry.sha[:8]

    @admin.action(description="Run one more seed", permissions=["change"])
    def run_one_more_seed(self, request: HttpRequest, chosen: models.QuerySet[Entry]) -> None:
        for entry in chosen.select_related("track__season"):
            self.queue_seeds(request, entry, 1)

    @admin.action(description="Run the seeds that it still needs to be resolved", permissions=["change"])
    def run_needed_seeds(self, request: HttpRequest, chosen: models.QuerySet[Entry]) -> None:
        for entry in chosen.select_related("track__season"):
            row = compute_standings(entry.track).get_row(entry.pk)
            needed = row.estimate.seeds_needed if row and row.estimate else None
            if not needed:
                self.message_user(request, f"{entry.title}: no number of seeds is known that it needs.")
            else:
                self.queue_seeds(request, entry, min(needed, SEEDS_AT_ONCE))

    def queue_seeds(self, request: HttpRequest, entry: Entry, count: int) -> None:
        try:
            permissions.require_permission(get_user(request), "run", entry)
            more = runs.queue_more_seeds(entry, count, actor=get_user(request).get_username())
            self.message_user(request, f"{entry.title}: {len(more)} more queued.", messages.SUCCESS)
        except (RunError, permissions.NotAllowedError) as error:
            self.message_user(request, f"{entry.title}: {error}", messages.ERROR)

    def save_model(self, request: HttpRequest, obj: Entry, form: forms.ModelForm[Entry], change: bool) -> None:
        """Another impact holds for what waits, too."""
        if "impact" in form.changed_data:
            intake.set_impact(obj, obj.impact, get_user(request).get_username())
        super().save_model(request, obj, form, change)

    # --- the queue and the decision ----------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        own = [
            path("queue/", wrap(self.queue), name=get_url_name("queue")),
            path("<int:entry_id>/approve/", wrap(require_POST(self.approve)), name=get_url_name("approve")),
            path("<int:entry_id>/reject/", wrap(require_POST(self.reject)), name=get_url_name("reject")),
        ]
        return own + super().get_urls()

    def queue(self, request: HttpRequest) -> HttpResponse:
        """Show what waits for a decision, oldest first, and what was decided last."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        entries = Entry.objects.select_related("track", "pull_request")
        context = {
            **self.admin_site.each_context(request),
            "title": "Waiting for approval",
            "waiting": [build_queue_row(entry, get_user(request)) for entry in entries.proposed()],
            "decided": entries.exclude(approved_by=None).order_by("-approved_at")[:DECIDED_SHOWN],
            "opts": self.opts,
        }
        return TemplateResponse(request, "admin/leaderboard/entry/queue.html", context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        entry = self.get_object(request, object_id)
        allowed = entry is not None and self.has_view_or_change_permission(request, entry)
        context = build_decision_context(entry, get_user(request)) if entry and allowed else {}
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), **context})

    def approve(self, request: HttpRequest, entry_id: int) -> HttpResponse:
        entry = self.looked_at(request, entry_id)
        form = DecisionForm(request.POST)
        try:
            if not form.is_valid():
                raise IntakeError("Nothing was approved: an impact is a whole number from -1000 to 1000.")
            given = form.cleaned_data
            made = intake.approve_entry(
                entry, given["sha"], get_user(request), budget=given["budget"], impact=given["impact"]
            )
        except IntakeError as error:
            return self.back(request, entry, str(error))
        for run in made:
            self.message_user(request, f"{entry.title}: run {run.pk} is {run.state}.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:leaderboard_entry_queue"))

    def reject(self, request: HttpRequest, entry_id: int) -> HttpResponse:
        entry = self.looked_at(request, entry_id)
        try:
            intake.reject_entry(entry, request.POST.get("reason", ""), get_user(request))
        except IntakeError as error:
            return self.back(request, entry, str(error))
        self.message_user(request, f"{entry.title} is rejected; its author reads the reason.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:leaderboard_entry_queue"))

    def back(self, request: HttpRequest, entry: Entry, problem: str) -> HttpResponse:
        self.message_user(request, problem, messages.ERROR)
        return HttpResponseRedirect(reverse("admin:leaderboard_entry_change", args=[entry.pk]))

    def looked_at(self, request: HttpRequest, entry_id: int) -> Entry:
        entry = get_object_or_404(Entry.objects.select_related("track"), pk=entry_id)
        if not self.has_change_permission(request, entry):
            raise PermissionDenied
        return entry


def get_url_name(action: str) -> str:
    return f"leaderboard_entry_{action}"


def build_queue_row(entry: Entry, user: User) -> dict[str, Any]:
    """Return a line of the queue."""
    return {
        "entry": entry,
        "review": review.get_review_summary(entry),
        "not_yours": permissions.explain_denial(user, "approve", entry),
    }


def build_decision_context(entry: Entry, user: User) -> dict[str, Any]:
    """Return what a maintainer must see before deciding."""
    return {
        "review": review.review_entry(entry),
        "is_open": entry.state in (Entry.State.PROPOSED, Entry.State.SMOKE),
        "not_yours": permissions.explain_denial(user, "approve", entry),
        "compare_url": build_compare_url(entry),
        "smoke_passed": entry.smoke.get("passed"),
    }


def build_compare_url(entry: Entry) -> str:
    """Return where GitHub shows the difference; empty where that is not known."""
    if web_address(entry.repository) and "github.com" in entry.repository and entry.base_sha:
        return f"{entry.repository.removesuffix('.git')}/compare/{entry.base_sha}...{entry.sha}"
    return ""
