"""Admin pages of seasons, with the preparation that begins one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from leaderboard import runs
from leaderboard.admin.base import get_user
from leaderboard.models import Season
from leaderboard.publishing import season_datasets
from leaderboard.schedule import preparations
from leaderboard.schedule.first_season import SetupError
from leaderboard.views.live import LIVE_SECONDS, render_live
from scheduler.admin.base import ChangedFieldsAdmin
from trainer.errors import UserError
from trainer.scoring.benchmark_tasks import NAMES


class PreparationForm(forms.Form):
    """Arguments of `create_season` besides the season's fields."""

    suite = forms.CharField(
        label="Benchmark tasks", initial=", ".join(NAMES), help_text="The season stores their data for scorers."
    )
    evaluation_folder = forms.CharField(
        label="Folder with evaluation data",
        required=False,
        max_length=500,
        help_text="On the server, for a site without a network. Empty: download it.",
    )

    def clean_suite(self) -> list[str]:
        try:
            return preparations.parse_suite(self.cleaned_data["suite"])
        except UserError as error:
            raise ValidationError(str(error)) from error


@admin.register(Season)
class SeasonAdmin(ChangedFieldsAdmin):
    list_display = ("name", "active", "corpus", "tokenizer", "test_tokens", "dataset_hash", "baseline")
    list_select_related = ("baseline",)
    readonly_fields = ("dataset_hash", "vocabulary_size", "active", "on_the_hub")
    raw_id_fields = ("baseline",)

    @admin.display(description="Tokens on the Hub")
    def on_the_hub(self, season: Season) -> str:
        url = season_datasets.get_hub_url(season) if season.pk else ""
        return format_html('<a href="{0}">{0}</a>', url) if url else "-"

    def get_readonly_fields(self, request: HttpRequest, obj: Season | None = None) -> tuple[str, ...]:
        """Fix what the dataset follows from once its preparation is requested, unless that ended without one."""
        preparation = preparations.find_preparation(obj) if obj else None
        is_requested = preparation is not None and preparation.state in preparations.UNFINISHED
        is_fixed = obj is not None and (obj.is_prepared or is_requested)
        return (*self.readonly_fields, *(("corpus", "tokenizer", "limit_bytes") if is_fixed else ()))

    def has_delete_permission(self, request: HttpRequest, obj: Season | None = None) -> bool:
        return False

    def save_model(self, request: HttpRequest, obj: Season, form: forms.ModelForm[Season], change: bool) -> None:
        """Check queued runs against a new baseline or new caps, and let waiting ones continue.

        After the commit, since saving locks the season, and jobs are locked first (`graphs.lock_season`).
        """
        if not change:
            obj.active = False
        super().save_model(request, obj, form, change)
        actor = get_user(request).get_username()
        if {"caps", "baseline"} & set(form.changed_data):
            transaction.on_commit(lambda: runs.recheck_queued(obj, actor=actor))
        transaction.on_commit(lambda: runs.queue_waiting(obj, actor=actor))

    def response_add(self, request: HttpRequest, obj: Season, post_url_continue: str | None = None) -> HttpResponse:
        """Show the season's page, which has the button that prepares it."""
        self.message_user(request, f"{obj} is saved. Prepare it to begin it.", messages.INFO)
        return HttpResponseRedirect(get_address(obj))

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        season = kwargs.get("obj")
        if season is not None:
            context |= {"preparation_form": PreparationForm(), **get_live_context(season)}
        return super().render_change_form(request, context, *args, **kwargs)

    def get_urls(self) -> list[URLPattern]:
        views = {
            "live": self.show_progress,
            "prepare": require_POST(self.prepare),
            "cancel": require_POST(self.cancel),
        }
        urls = [
            path(f"<int:season_id>/{name}/", self.admin_site.admin_view(view), name=f"leaderboard_season_{name}")
            for name, view in views.items()
        ]
        return [*urls, *super().get_urls()]

    def show_progress(self, request: HttpRequest, season_id: int) -> JsonResponse:
        if not self.has_view_or_change_permission(request):
            raise PermissionDenied
        season = get_object_or_404(Season, pk=season_id)
        context = get_live_context(season)
        wait = LIVE_SECONDS if context["is_unfinished"] else 0
        page = "admin/leaderboard/season/change_form.html"
        return render_live(page, ["preparation-progress"], context, revision=context["revision"], wait=wait)

    def prepare(self, request: HttpRequest, season_id: int) -> HttpResponse:
        """Request the preparation, which a worker takes up."""
        season = self.get_changeable_season(request, season_id)
        form = PreparationForm(request.POST)
        if not form.is_valid():
            for errors in form.errors.values():
                self.message_user(request, " ".join(map(str, errors)), messages.ERROR)
            return HttpResponseRedirect(get_address(season))
        folder = form.cleaned_data["evaluation_folder"]
        actor, suite = get_user(request).get_username(), form.cleaned_data["suite"]
        try:
            preparations.request_preparation(season, actor, suite, Path(folder) if folder else None)
        except ValidationError as error:
            self.message_user(request, " ".join(error.messages), messages.ERROR)
        except SetupError as error:
            self.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(get_address(season))

    def cancel(self, request: HttpRequest, season_id: int) -> HttpResponse:
        season = self.get_changeable_season(request, season_id)
        if not preparations.cancel_preparation(season, get_user(request).get_username()):
            self.message_user(request, "There is nothing to cancel: it has ended.", messages.WARNING)
        return HttpResponseRedirect(get_address(season))

    def get_changeable_season(self, request: HttpRequest, season_id: int) -> Season:
        season = get_object_or_404(Season, pk=season_id)
        if not self.has_change_permission(request, season):
            raise PermissionDenied
        return season


def get_live_context(season: Season) -> dict[str, Any]:
    """Return the preparation and the revision of the page's part. Buttons change with the state."""
    preparation = preparations.find_preparation(season)
    return {
        "season": season,
        "preparation": preparation,
        "is_unfinished": preparation is not None and preparation.state in preparations.UNFINISHED,
        "revision": f"{preparation.state}.{preparation.version}.{season.active}" if preparation else f"{season.active}",
    }


def get_address(season: Season) -> str:
    return reverse("admin:leaderboard_season_change", args=[season.pk])
