"""Admin page of seasons. `manage.py create_season` prepares and begins one."""

from __future__ import annotations

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.http import HttpRequest

from leaderboard import runs
from leaderboard.admin.base import get_user
from leaderboard.models import Season
from scheduler.admin.base import ChangedFieldsAdmin


@admin.register(Season)
class SeasonAdmin(ChangedFieldsAdmin):
    list_display = ("name", "active", "corpus", "tokenizer", "test_tokens", "dataset_hash", "baseline")
    list_select_related = ("baseline",)
    readonly_fields = ("dataset_hash", "vocabulary_size", "active")
    raw_id_fields = ("baseline",)

    def get_readonly_fields(self, request: HttpRequest, obj: Season | None = None) -> tuple[str, ...]:
        """Fix what the dataset follows from once it is prepared."""
        is_fixed = obj is not None and obj.is_prepared
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
        if not change:
            self.message_user(request, f"Prepare and begin it: manage.py create_season '{obj}'", messages.INFO)
