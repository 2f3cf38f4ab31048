"""Admin pages of the outbox, with an action to process messages again, and of GitHub's repositories."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from leaderboard import outbox
from leaderboard.admin.base import get_user
from leaderboard.integrations.github import deliveries
from leaderboard.models import GitHubRepository, OutboxMessage
from leaderboard.notifications import delivery
from scheduler.admin.base import ReadOnlyAdmin
from scheduler.models import Event


@admin.register(OutboxMessage)
class OutboxMessageAdmin(ReadOnlyAdmin):
    list_display = ("key", "state", "attempts", "not_before", "done_at", "problem")
    list_filter = ("state", "kind")
    search_fields = ("key", "problem")
    actions = ("again",)

    @admin.action(description="Process again", permissions=["view"])
    def again(self, request: HttpRequest, queryset: QuerySet[OutboxMessage]) -> None:
        """Queue messages in any state: their handlers are idempotent. Notices are not sent again."""
        unsent = queryset.exclude(kind=delivery.KIND, state=OutboxMessage.State.DONE)
        chosen = list(unsent.exclude(kind=deliveries.KIND, payload={}))  # deleted after a while
        for message in chosen:
            outbox.enqueue(message.kind, message.key, message.payload)
            Event.record(get_user(request).get_username(), message, f"Queued {message.key} again.")
        messages.info(request, f"Queued again: {len(chosen)}.")


@admin.register(GitHubRepository)
class GitHubRepositoryAdmin(ReadOnlyAdmin):
    list_display = ("name", "number", "configured")

    def has_delete_permission(self, request: HttpRequest, obj: GitHubRepository | None = None) -> bool:
        """Allow deletion: another repository with the name counts only after it."""
        return request.user.has_perm("leaderboard.delete_githubrepository")
