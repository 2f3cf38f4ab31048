"""Admin pages of entries: the approval queue, the changes of each entry, and the decision about its commit."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from leaderboard import permissions, runs
from leaderboard.admin.base import NoAddOrDeleteAdmin, act_on_each, get_user, list_field_names
from leaderboard.graph_comparison import build_graph_view
from leaderboard.models import ApprovalLimits, Entry
from leaderboard.monitoring import morning
from leaderboard.rankings.standings import compute_standings
from leaderboard.submissions import families, intake, policy, review, stations
from leaderboard.submissions.intake import IntakeError

MAX_SEEDS_QUEUED = 10
"""Most seeds that one click queues."""
DECISIONS_SHOWN = 8


class ApprovalForm(forms.Form):
    """An approval and its settings. Empty fields change nothing."""

    sha = forms.CharField(max_length=40)
    budget = forms.CharField(max_length=40, required=False)
    impact = forms.IntegerField(min_value=-1000, max_value=1000, required=False)


class EntryForm(forms.ModelForm):  # type: ignore[type-arg]
    def clean_based_on(self) -> Entry | None:
        ancestor: Entry | None = self.cleaned_data["based_on"]
        try:
            intake.check_ancestor(ancestor.pk if ancestor else None, self.instance.sha, self.instance.pk)
        except IntakeError as error:
            raise forms.ValidationError(str(error)) from error
        return ancestor


@admin.register(ApprovalLimits)
class ApprovalLimitsAdmin(NoAddOrDeleteAdmin):
    """One row, which the first look at the approval queue creates."""

    list_display = ("__str__", "is_paused", "author_hours", "site_hours")
    readonly_fields = ("is_paused",)  # the button of the queue, which records an Event


@admin.register(Entry)
class EntryAdmin(NoAddOrDeleteAdmin):
    """A decision applies to the SHA that the page showed, not to the entry."""

    form = EntryForm
    list_display = ("title", "short_sha", "architecture", "author", "kind", "state", "track", "created_at")
    list_filter = ("state", "kind", "track")
    search_fields = ("title", "author", "sha", "architecture")
    list_select_related = ("track",)
    readonly_fields = [
        name for name in list_field_names(Entry) if name not in ("impact", "hypothesis", "title", "based_on")
    ]
    raw_id_fields = ("based_on",)
    actions = ("run_one_more_seed", "run_needed_seeds", "lift_to_next_track", "hold_entries", "release_entries")
    change_list_template = "admin/leaderboard/entry/change_list.html"

    def has_change_permission(self, request: HttpRequest, obj: Entry | None = None) -> bool:
        allowed = super().has_change_permission(request, obj)
        return allowed and (obj is None or permissions.can_approve(get_user(request), obj))

    @admin.display(description="commit", ordering="sha")
    def short_sha(self, entry: Entry) -> str:
        return entry.sha[:8]

    @admin.action(description="Run one more seed", permissions=["change"])
    def run_one_more_seed(self, request: HttpRequest, queryset: QuerySet[Entry]) -> None:
        entries = queryset.select_related("track__season")
        act_on_each(self, request, entries, lambda entry: self.queue_seeds(request, entry, 1))

    @admin.action(description="Run the seeds that are needed to resolve it", permissions=["change"])
    def run_needed_seeds(self, request: HttpRequest, queryset: QuerySet[Entry]) -> None:
        def act(entry: Entry) -> str:
            row = compute_standings(entry.track).get_row(entry.pk)
            needed = row.estimate.seeds_needed if row and row.estimate else None
            if not needed:
                raise ValueError("It is unknown how many seeds it needs.")
            return self.queue_seeds(request, entry, min(needed, MAX_SEEDS_QUEUED))

        act_on_each(self, request, queryset.select_related("track__season"), act)

    @admin.action(description="Lift to the next track, approved there", permissions=["change"])
    def lift_to_next_track(self, request: HttpRequest, queryset: QuerySet[Entry]) -> None:
        def act(entry: Entry) -> str:
            lifted = stations.lift_entry(entry, get_user(request))
            return f"{entry.title} is on {', '.join(station.track.name for station in lifted)}."

        act_on_each(self, request, queryset.select_related("track__season"), act)

    @admin.action(description="Hold: neither approve automatically nor move up", permissions=["change"])
    def hold_entries(self, request: HttpRequest, queryset: QuerySet[Entry]) -> None:
        self.set_held(request, queryset, is_held=True)

    @admin.action(description="Release held entries", permissions=["change"])
    def release_entries(self, request: HttpRequest, queryset: QuerySet[Entry]) -> None:
        self.set_held(request, queryset, is_held=False)

    def set_held(self, request: HttpRequest, queryset: QuerySet[Entry], *, is_held: bool) -> None:
        def act(entry: Entry) -> str:
            permissions.require_permission(get_user(request), "approve", entry)
            policy.set_held(entry, is_held, get_user(request).get_username())
            return f"{entry.title} is {'held' if is_held else 'not held'}."

        act_on_each(self, request, queryset.select_related("track"), act)

    def queue_seeds(self, request: HttpRequest, entry: Entry, count: int) -> str:
        permissions.require_permission(get_user(request), "run", entry)
        more = runs.queue_more_seeds(entry, count, actor=get_user(request).get_username())
        return f"{entry.title}: {len(more)} more queued."

    def save_model(self, request: HttpRequest, obj: Entry, form: forms.ModelForm[Entry], change: bool) -> None:
        """A new impact also applies to the entry's waiting jobs."""
        if "impact" in form.changed_data:
            intake.set_impact(obj, obj.impact, get_user(request).get_username())
        super().save_model(request, obj, form, change)

    # --- the queue and the decision ----------------------------------------------------------------------------------

    def get_urls(self) -> list[URLPattern]:
        wrap, prefix = self.admin_site.admin_view, "leaderboard_entry_"
        return [
            path("queue/", wrap(self.queue), name=f"{prefix}queue"),
            path("morning/", wrap(self.morning), name=f"{prefix}morning"),
            path("queue/pause/", wrap(require_POST(self.pause)), name=f"{prefix}pause"),
            path("<int:entry_id>/approve/", wrap(require_POST(self.approve)), name=f"{prefix}approve"),
            path("<int:entry_id>/reject/", wrap(require_POST(self.reject)), name=f"{prefix}reject"),
            *super().get_urls(),
        ]

    def queue(self, request: HttpRequest) -> HttpResponse:
        """Show the entries that wait for a decision, oldest first, and the latest decisions."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        entries = Entry.objects.select_related("track", "pull_request")
        waiting = [
            {
                "entry": entry,
                "review": review.get_review_summary(entry),
                "denial": permissions.explain_denial(get_user(request), "approve", entry),
            }
            for entry in entries.proposed()
        ]
        context = {
            **self.admin_site.each_context(request),
            "title": "Waiting for approval",
            "waiting": waiting,
            "limits": ApprovalLimits.load(),
            "can_pause": permissions.is_maintainer(get_user(request)),
            "decided": entries.exclude(approved_by=None).order_by("-approved_at")[:DECISIONS_SHOWN],
            "opts": self.opts,
        }
        return TemplateResponse(request, "admin/leaderboard/entry/queue.html", context)

    def morning(self, request: HttpRequest) -> HttpResponse:
        """Show what needs a person, and the last night in a paragraph."""
        if not permissions.is_maintainer(get_user(request)):
            raise PermissionDenied
        now, context = timezone.now(), {**self.admin_site.each_context(request), "title": "This morning"}
        context |= {"decisions": morning.list_decisions(now), "night": morning.describe_night(now), "opts": self.opts}
        return TemplateResponse(request, "admin/leaderboard/entry/morning.html", context)

    def pause(self, request: HttpRequest) -> HttpResponse:
        """Pause or resume all automatic approvals."""
        if not permissions.is_maintainer(get_user(request)):
            raise PermissionDenied
        policy.set_paused(request.POST.get("paused") == "yes", get_user(request).get_username())
        return return_to_list(request)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        entry, context = self.get_object(request, object_id), dict(extra_context or {})
        if entry and self.has_view_or_change_permission(request, entry):
            traced = families.find_graph(entry)
            context |= {
                "review": review.review_entry(entry),
                "twin": policy.find_duplicate(entry, traced) if traced else None,
                "graph": build_graph_view(entry),
                "is_open": entry.state in (Entry.State.PROPOSED, Entry.State.SMOKE),
                "denial": permissions.explain_denial(get_user(request), "approve", entry),
            }
        return super().change_view(request, object_id, form_url, context)

    def approve(self, request: HttpRequest, entry_id: int) -> HttpResponse:
        entry, form = self.get_entry_to_decide(request, entry_id), ApprovalForm(request.POST)
        try:
            if not form.is_valid():
                wrong = [f"{name}: {' '.join(map(str, problems))}" for name, problems in form.errors.items()]
                raise IntakeError(f"Not approved. {' '.join(wrong)}")
            queued = intake.approve_entry(entry, user=get_user(request), **form.cleaned_data)
        except IntakeError as error:
            return self.show_error(request, entry, error)
        for run in queued:
            self.message_user(request, f"{entry.title}: run {run.pk} is {run.state}.", messages.SUCCESS)
        return return_to_list(request)

    def reject(self, request: HttpRequest, entry_id: int) -> HttpResponse:
        entry = self.get_entry_to_decide(request, entry_id)
        try:
            intake.reject_entry(entry, request.POST.get("reason", ""), get_user(request))
        except IntakeError as error:
            return self.show_error(request, entry, error)
        self.message_user(request, f"{entry.title} is rejected. Its author can read the reason.", messages.SUCCESS)
        return return_to_list(request)

    def show_error(self, request: HttpRequest, entry: Entry, error: IntakeError) -> HttpResponse:
        self.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(reverse("admin:leaderboard_entry_change", args=[entry.pk]))

    def get_entry_to_decide(self, request: HttpRequest, entry_id: int) -> Entry:
        entry = get_object_or_404(Entry.objects.select_related("track"), pk=entry_id)
        if not self.has_change_permission(request, entry):
            raise PermissionDenied
        return entry


def return_to_list(request: HttpRequest) -> HttpResponse:
    """Go back to the page on which something was decided."""
    page = "morning" if "morning" in request.POST else "queue"
    return HttpResponseRedirect(reverse(f"admin:leaderboard_entry_{page}"))
