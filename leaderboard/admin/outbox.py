"""Admin pages of GitHub's webhooks and the outbox, with actions to process them again."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from leaderboard import outbox
from leaderboard.admin.base import get_user
from leaderboard.models import Delivery, GitHubRepository, Installation, OutboxMessage
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
        """Queue messages in any state: their handlers are idempotent, but for notices, which are not sent again."""
        chosen = list(queryset.exclude(kind=delivery.KIND, state=OutboxMessage.State.DONE))
        for message in chosen:
            outbox.enqueue(message.kind, message.key, message.payload)
            Event.record(get_user(request).get_username(), message, f"Queued {message.key} again.")
        messages.info(request, f"Queued again: {len(chosen)}.")


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ("received_at", "event", "action", "subject", "state", "attempts", "problem")
    list_filter = ("state", "event")
    search_fields = ("guid", "subject", "problem")
    actions = ("again",)

    @admin.action(description="Process again", permissions=["view"])
    def again(self, request: HttpRequest, queryset: QuerySet[Delivery]) -> None:
        """Queue the webhooks whose payload is still stored and that are not waiting already."""
        deliveries = list(queryset.exclude(payload={}).exclude(state=Delivery.State.NEW))
        for webhook in deliveries:
            Event.record(get_user(request).get_username(), webhook, f"Queued {webhook} again.")
        Delivery.objects.filter(pk__in=[webhook.pk for webhook in deliveries]).update(
            state=Delivery.State.NEW, attempts=0, problem="", not_before=timezone.now()
        )
        messages.info(request, f"Queued again: {len(deliveries)}.")


@admin.register(Installation)
class InstallationAdmin(ReadOnlyAdmin):
    list_display = ("account", "number", "suspended", "repositories", "created_at")


@admin.register(GitHubRepository)
class GitHubRepositoryAdmin(ReadOnlyAdmin):
    list_display = ("name", "number", "configured")

    def has_delete_permission(self, request: HttpRequest, obj: GitHubRepository | None = None) -> bool:
        """Allow deletion: another repository with the name counts only after it."""
        return request.user.has_perm("leaderboard.delete_githubrepository")
