"""Admin pages of tracks, runs, replays, nights and API tokens."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone

from leaderboard import runs
from leaderboard.actions import RUN_ACTIONS, perform_run_action
from leaderboard.admin.base import NoAddAdmin, act_on_each, get_user, list_field_names
from leaderboard.initial_weights import get_checkpoint_at, list_steps
from leaderboard.job_handlers import replays
from leaderboard.models import ApiToken, Entry, Night, Replay, Run, Track, TrackHours
from leaderboard.rankings import confirmations, trust
from leaderboard.schedule.night_checks import check_next_night
from scheduler import transitions
from scheduler.admin.base import ChangedFieldsAdmin, ReadOnlyWithActions, apply_to_rows, build_row_action
from scheduler.models import Checkpoint
from trainer.accounting.training_size import GB

SWARM_NUMBERS = ("stages", "workers", "minimum", "patience")


class TrackHoursInline(admin.TabularInline):  # type: ignore[type-arg]
    model = TrackHours
    extra = 0


class SwarmSizesWidget(forms.MultiWidget):
    """A number for each size of a swarm, with its name as placeholder."""

    def __init__(self) -> None:
        attributes = {"class": "swarm-size", "min": 1}
        super().__init__({name: forms.NumberInput({**attributes, "placeholder": name}) for name in SWARM_NUMBERS})

    def decompress(self, value: Any) -> list[Any]:
        given = json.loads(value) if isinstance(value, str) else value or {}
        return [given.get(name) for name in SWARM_NUMBERS]


class SwarmSizesField(forms.MultiValueField):
    """The sizes of a swarm as numbers; all empty for other tracks."""

    widget = SwarmSizesWidget

    def __init__(self) -> None:
        text = "For a track of kind swarm: stages of the model, machines wanted per stage, machines per stage before "
        text += "the first step, seconds until a silent machine is lost. Empty for other tracks."
        fields = [forms.IntegerField(required=False, min_value=1, label=name) for name in SWARM_NUMBERS]
        super().__init__(fields, required=False, require_all_fields=False, help_text=text)

    def compress(self, data_list: list[Any]) -> dict[str, int]:
        return {name: value for name, value in zip(SWARM_NUMBERS, data_list, strict=False) if value is not None}


class TrackForm(forms.ModelForm):  # type: ignore[type-arg]
    """Offers the checkpoints and milestones of the saved start run, and a swarm's sizes as numbers."""

    swarm = SwarmSizesField()

    start_checkpoint = forms.TypedChoiceField(
        label="At",
        required=False,
        coerce=int,
        empty_value=None,
        help_text="A checkpoint or milestone of that run, after its number is saved. Empty: its final checkpoint, so "
        "that it must be finished.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        start, checkpoint = self.instance.start_run, self.instance.start_checkpoint
        steps = list_steps(start) if start else []
        choices = [("", "---------"), *((step, f"step {step:,}") for step in steps)]
        self.fields["start_checkpoint"].choices = choices  # type: ignore[attr-defined]
        self.initial["start_checkpoint"] = checkpoint.step if checkpoint else None

    def clean_start_checkpoint(self) -> Checkpoint | None:
        step: int | None = self.cleaned_data["start_checkpoint"]
        start, before = self.instance.start_run, self.instance.start_checkpoint
        if step is None or start is None or (before and before.step == step):
            return before if step is not None else None
        try:
            return get_checkpoint_at(start, step)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error


@admin.register(Track)
class TrackAdmin(ChangedFieldsAdmin):
    form = TrackForm
    list_display = ("name", "slug", "kind", "season", "budget", "qualifier", "approval", "is_default", "nightly")
    list_select_related = ("season", "qualifier")
    prepopulated_fields = {"slug": ("name",)}
    inlines = (TrackHoursInline,)
    raw_id_fields = ("start_run",)
    readonly_fields = ("computed_sizes",)

    def get_readonly_fields(self, request: HttpRequest, obj: Track | None = None) -> tuple[str, ...]:
        """Fix the slug of an existing track: jobs, nodes and pull requests name it."""
        return (*self.readonly_fields, *(("slug",) if obj else ()))

    def get_prepopulated_fields(self, request: HttpRequest, obj: Track | None = None) -> dict[str, Any]:
        return {} if obj else {**self.prepopulated_fields}

    @admin.display(description="Computed sizes and limits")
    def computed_sizes(self, track: Track) -> str:
        """Return what the limits follow from: the baseline's size, checkpoints, memory."""
        if track.season_id is None or track.size is None:
            return "Unknown: no formula covers this configuration. Uploads have the limits of the settings."
        size, memory, uploads = track.size, track.gpu_memory, track.upload_limits()
        limits, sizes = track.training_limits(), track.get_checkpoint_sizes()
        parts = {
            "checkpoint to resume from": sizes.checkpoint,
            "milestone": sizes.milestone,
            "kept of a run": sizes.kept,
            "memory of one GPU, at most": sum(memory.values()),
            "memory limit": limits.memory_bytes,
            "disk limit": limits.disk_bytes,
            "limit of a file": uploads.file_bytes if uploads else 0,
            "limit of a lease": uploads.lease_bytes if uploads else 0,
        }
        shown = [f"{name} {value / GB:,.1f} GB" for name, value in parts.items() if value]
        return f"{size.parameters:,} parameters; {', '.join(shown)}"

    def get_urls(self) -> list[URLPattern]:
        night = self.admin_site.admin_view(self.check_night)
        return [path("<int:track_id>/night/", night, name="leaderboard_track_night"), *super().get_urls()]

    def check_night(self, request: HttpRequest, track_id: int) -> HttpResponse:
        """Show what the track's next night needs, and what is missing."""
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        track = get_object_or_404(Track.objects.select_related("season__baseline"), pk=track_id)
        checks = check_next_night(track, timezone.now())
        context = {
            **self.admin_site.each_context(request),
            "title": f"Next night of {track}",
            "track": track,
            "checks": checks,
            "fails": any(check.fails_night for check in checks),
            "opts": self.opts,
        }
        return TemplateResponse(request, "admin/leaderboard/track/night.html", context)


@admin.register(Run)
class RunAdmin(ReadOnlyWithActions):
    list_display = ("__str__", "state", "reason", "purpose", "created_at")
    exclude = ("config", "checks", "suite_seconds")  # the run's page shows them
    list_filter = ("state", "purpose", "track", "cause")
    search_fields = ("entry__title", "entry__sha", "entry__author")
    list_select_related = ("entry", "track")
    actions = (
        "cancel_runs",
        "hold",
        "resume_held",
        "raise_priority",
        "retry_failed",
        "run_again",
        "confirm",
        "replay",
        "settle",
    )

    @admin.action(description="Cancel", permissions=["change"])
    def cancel_runs(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        self.perform_action(request, queryset, "cancel")

    @admin.action(description="Hold: keep from nodes until resumed", permissions=["change"])
    def hold(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        self.perform_action(request, queryset, "hold")

    @admin.action(description="Resume held runs", permissions=["change"])
    def resume_held(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        self.perform_action(request, queryset, "resume")

    def perform_action(self, request: HttpRequest, queryset: QuerySet[Run], name: str) -> None:
        """Perform an action of a run's page. The admin opens after the second step only."""

        def act(run: Run) -> str:
            changed = perform_run_action(run, name, get_user(request), is_maintainer=True)
            return f"{changed}: {RUN_ACTIONS[name].message}"

        act_on_each(self, request, queryset.select_related("entry", "track", "job"), act)

    @admin.action(description="Raise the priority by one step", permissions=["change"])
    def raise_priority(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        def act(run: Run) -> bool:
            return run.job is not None and transitions.raise_priority(run.job, get_user(request).get_username())

        apply_to_rows(self, request, queryset.select_related("job", "entry"), act, "Raised")

    @admin.action(description="Retry with the same seed after a failure of the infrastructure", permissions=["change"])
    def retry_failed(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        def act(run: Run) -> str:
            runs.retry_run(run, actor=get_user(request).get_username())
            return f"Run {run.pk} is {run.state}."

        act_on_each(self, request, queryset, act)

    @admin.action(description="Run the entry again with a new seed", permissions=["change"])
    def run_again(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        def act(run: Run) -> str:
            new = runs.rerun(run, actor=get_user(request).get_username())
            return f"Run {new.pk} is {new.state}, seed {new.seed}."

        act_on_each(self, request, queryset.select_related("entry", "track__season"), act)

    @admin.action(description="Confirm the entry: new seeds on unrelated, trusted nodes", permissions=["change"])
    def confirm(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        def act(entry: Entry) -> str:
            queued = confirmations.queue_confirmation_runs(entry, actor=get_user(request).get_username())
            return f"{entry.title} has {len(queued)} confirmation runs."

        entries = Entry.objects.filter(runs__in=queryset).select_related("track__season").distinct()
        act_on_each(self, request, entries, act)

    @admin.action(description="Replay a random stretch on another, trusted node", permissions=["change"])
    def replay(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        def act(run: Run) -> str:
            return f"Queued: {replays.request_replay(run, actor=get_user(request).get_username())}."

        act_on_each(self, request, queryset.select_related("entry", "track", "job__release"), act)

    settle = build_row_action("Settle the dispute: the result counts again", "Settled", trust.settle_dispute)


@admin.register(Replay)
class ReplayAdmin(NoAddAdmin):
    list_display = ("pk", "run", "node", "start_step", "end_step", "state", "deviation", "sentence")
    list_filter = ("state",)
    list_select_related = ("run__entry", "node")
    readonly_fields = list_field_names(Replay)


@admin.register(Night)
class NightAdmin(NoAddAdmin):
    list_display = ("date", "track", "sentence", "run")
    list_filter = ("track",)
    list_select_related = ("track", "run__entry")
    readonly_fields = list_field_names(Night)


@admin.register(ApiToken)
class ApiTokenAdmin(NoAddAdmin):
    """Users create their own tokens (`views.api_tokens`)."""

    list_display = ("name", "owner", "scope", "created_at", "last_used_at", "revoked")
    list_select_related = ("owner",)
    fields = ("name", "owner", "scope", "revoked", "created_at", "last_used_at")
    readonly_fields = ("owner", "scope", "created_at", "last_used_at")
