"""What maintainers do: stop and repeat runs, keep seasons, tracks and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.auth.models import User
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers

from leaderboard import runs
from leaderboard.actions import perform_run_action
from leaderboard.admin.entries import EntryAdmin, get_user
from leaderboard.admin.notices import TrackHoursInline
from leaderboard.admin.outbox import DeliveryAdmin, EffectAdmin, InstallationAdmin
from leaderboard.admin.people import PeopleAdmin
from leaderboard.job_handlers import replays
from leaderboard.job_handlers.replays import ReplayError
from leaderboard.models import ApiToken, Delivery, Effect, Entry, Installation, Night, Replay, Run, Season, Track
from leaderboard.rankings import confirmations, trust
from leaderboard.rankings.confirmations import ConfirmationError
from leaderboard.runs import RunError
from scheduler import transitions
from scheduler.models import Checkpoint

if TYPE_CHECKING:
    SeasonModelAdmin = admin.ModelAdmin[Season]
    TrackModelAdmin = admin.ModelAdmin[Track]
    RunModelAdmin = admin.ModelAdmin[Run]
    NightModelAdmin = admin.ModelAdmin[Night]
    ReplayModelAdmin = admin.ModelAdmin[Replay]
    ApiTokenModelAdmin = admin.ModelAdmin[ApiToken]
else:
    SeasonModelAdmin = TrackModelAdmin = admin.ModelAdmin
    RunModelAdmin = NightModelAdmin = ReplayModelAdmin = ApiTokenModelAdmin = admin.ModelAdmin

admin.site.register(Entry, EntryAdmin)
admin.site.register(Effect, EffectAdmin)
admin.site.register(Delivery, DeliveryAdmin)
admin.site.register(Installation, InstallationAdmin)
admin.site.unregister(User)
admin.site.register(User, PeopleAdmin)


def field_names(model: type[models.Model]) -> list[str]:
    return [field.name for field in model._meta.fields]


@admin.register(Season)
class SeasonAdmin(SeasonModelAdmin):
    list_display = ("name", "active", "corpus", "tokenizer", "dataset_hash", "baseline")
    list_select_related = ("baseline",)
    readonly_fields = ("dataset_hash",)
    raw_id_fields = ("baseline",)

    def has_delete_permission(self, request: HttpRequest, obj: Season | None = None) -> bool:
        return False


@admin.register(Track)
class TrackAdmin(TrackModelAdmin):
    list_display = ("name", "slug", "kind", "season", "budget", "needs_labels", "is_default", "nightly", "position")
    list_select_related = ("season",)
    prepopulated_fields = {"slug": ("name",)}
    inlines = (TrackHoursInline,)
    raw_id_fields = ("start_run",)

    def get_form(self, request: HttpRequest, obj: Track | None = None, change: bool = False, **kwargs: Any) -> Any:
        """Offer the checkpoints of the run that it starts from: once that is saved, there are some to choose from."""
        form = super().get_form(request, obj, change, **kwargs)
        if "start_checkpoint" in form.base_fields:
            job = obj.start_run.job_id if obj and obj.start_run else None
            field = form.base_fields["start_checkpoint"]
            field.queryset = Checkpoint.objects.with_files().filter(job=job) if job else Checkpoint.objects.none()  # type: ignore[attr-defined]
        return form


@admin.register(Run)
class RunAdmin(RunModelAdmin):
    list_display = ("pk", "entry", "track", "purpose", "seed", "state", "reason", "bits_per_byte", "created_at")
    list_filter = ("state", "purpose", "track", "cause")
    search_fields = ("entry__title", "entry__sha", "entry__author")
    list_select_related = ("entry", "track")
    actions = ("cancel_runs", "hold", "let_go", "raise_priority", "go_on", "run_again", "confirm", "replay", "settle")
    readonly_fields = field_names(Run)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        return False

    @admin.action(description="Cancel", permissions=["change"])
    def cancel_runs(self, request: HttpRequest, chosen: models.QuerySet[Run]) -> None:
        for run in chosen:
            runs.cancel_run(run, f"Cancelled by {get_user(request)}.", get_user(request).get_username())
        self.message_user(request, "Cancelled; a node that works on one hears of it with its next heartbeat.")

    @admin.action(
        description="Go on with the same seed (after a failure of the infrastructure)", permissions=["change"]
    )
    def go_on(self, request: HttpRequest, chosen: models.QuerySet[Run]) -> None:
        for run in chosen:
            try:
                runs.retry_run(run, actor=get_user(request).get_username())
                self.message_user(request, f"Run {run.pk} is {run.state}.", messages.SUCCESS)
            except RunError as error:
                self.message_user(request, f"Run {run.pk}: {error}", messages.ERROR)

    @admin.action(description="Hold: keep back until let go on", permissions=["change"])
    def hold(self, request: HttpRequest, chosen: models.QuerySet[Run]) -> None:
        self.perform_action(request, chosen, "hold")

    @admin.action(description="Let go on what is held", permissions=["change"])
    def let_go(self, request: HttpRequest, chosen: models.QuerySet[Run]) -> None:
        self.perform_action(request, chosen, "go-on")

    def perform_action(self, request: HttpRequest, chosen: models.QuerySet[Run], action: str) -> None:
        """Perform an action of a run's page. The admin opens after the second step only."""
        for run in chosen.select_related("entry", "track", "job"):
            try:
                done = perform_run_action(run, action, get_user(request), is_maintainer=True)
                self.message_user(request, f"Run {run.pk}: {done}", messages.SUCCESS)
            except RunError as error:
                self.message_user(request, str(error), messages.ERROR)

    @admin.action(description="Raise the priority by one step", permissions=["change"])
    def raise_priority(self, request: HttpRequest, chosen: models.QuerySet[Run]) -> None:
        raised = [
            run
            for run in chosen.select_related("job")
            if run.job and transitions.raise_priority(run.job, get_user(request).get_username())
        ]
        self.message_user(request, f"Raised: {len(raised)} of {len(chosen)}.")

    @admin.action(description="Run the entry again with a new seed", permissions=["change"])
    def run_again(self, request: HttpRequest, chosen: models.QuerySet[Run]) -> None:
        for run in chosen.select_related("entry", "track__season"):
            try:
                again = runs.rerun(run, actor=get_user(request).get_username())
                self.message_user(request, f"Run {again.pk} is {again.state}, seed {again.seed}.", messages.SUCCESS)
            except RunError as error:
                self.message_user(request, f"Run {run.pk}: {error}", messages.ERROR)

    @admin.action(description="Confirm the entry: fresh seeds on unrelated, trusted nodes", permissions=["change"])
    def confirm(self, request: HttpRequest, chosen: models.QuerySet[Run]) -> None:
        for entry in Entry.objects.filter(runs__in=chosen).select_related("track__season").distinct():
            try:
                made = confirmations.queue_confirmation_runs(entry, actor=get_user(request).get_username())
                self.message_user(request, f"{entry.title} has {len(made)} confirmation runs.", messages.SUCCESS)
            except (ConfirmationError, RunError) as error:
                self.message_user(request, str(error), messages.ERROR)

    @admin.action(description="Replay a random stretch on another, trusted node", permissions=["change"])
    def replay(self, request: HttpRequest, chosen: models.QuerySet[Run]) -> None:
        for run in chosen.select_related("entry", "track", "job__release"):
            try:
                asked = replays.request_replay(run, actor=get_user(request).get_username())
                self.message_user(request, f"Queued: {asked}.", messages.SUCCESS)
            except ReplayError as error:
                self.message_user(request, str(error), messages.ERROR)

    @admin.action(description="Settle the dispute: the result counts again", permissions=["change"])
    def settle(self, request: HttpRequest, chosen: models.QuerySet[Run]) -> None:
        settled = [run for run in chosen if trust.settle_dispute(run, get_user(request).get_username())]
        self.message_user(request, f"Settled: {len(settled)} of {len(chosen)}.")


@admin.register(Replay)
class ReplayAdmin(ReplayModelAdmin):
    list_display = ("pk", "run", "node", "start_step", "end_step", "state", "deviation", "sentence")
    list_filter = ("state",)
    list_select_related = ("run__entry", "node")
    readonly_fields = field_names(Replay)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(Night)
class NightAdmin(NightModelAdmin):
    list_display = ("date", "track", "sentence", "run")
    list_filter = ("track",)
    list_select_related = ("track", "run__entry")
    readonly_fields = field_names(Night)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


@admin.register(ApiToken)
class ApiTokenAdmin(ApiTokenModelAdmin):
    list_display = ("name", "owner", "scope", "created_at", "last_used_at", "revoked")
    list_select_related = ("owner",)
    readonly_fields = ("created_at", "last_used_at")

    def get_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> tuple[str, ...]:
        return ("name", "owner", "scope", *(["revoked", "created_at", "last_used_at"] if obj else []))

    def get_readonly_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> tuple[str, ...]:
        return (*self.readonly_fields, "owner", "scope") if obj else self.readonly_fields

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"owner": get_user(request).pk}

    def save_model(self, request: HttpRequest, obj: ApiToken, form: forms.ModelForm[ApiToken], change: bool) -> None:
        if not change:
            request.secret = obj.draw_secret()  # type: ignore[attr-defined]
        super().save_model(request, obj, form, change)

    def response_add(self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None) -> HttpResponse:
        """Show the secret in this one answer: it is in no session, no message and no second page."""
        secret: str = request.secret  # type: ignore[attr-defined]
        context = {**self.admin_site.each_context(request), "title": f"Token {obj.name}", "secret": secret}
        response = TemplateResponse(
            request, "admin/leaderboard/apitoken/created.html", {**context, "curl": curl_line(secret)}
        )
        add_never_cache_headers(response)
        return response


def curl_line(secret: str) -> str:
    """Return what to paste into a CI job."""
    return (
        f"curl --fail-with-body {settings.SITE_URL}/api/v1/runs \\\n"
        f"  -H 'Authorization: Bearer {secret}' -H 'Content-Type: application/json' \\\n"
        '  -d "{\\"repository\\": \\"$(git remote get-url origin)\\", \\"sha\\": \\"$(git rev-parse HEAD)\\",'
        ' \\"architecture\\": \\"gpt\\", \\"title\\": \\"$(git log -1 --format=%h)\\"}"'
    )
