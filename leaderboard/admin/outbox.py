"""What GitHub told the site and what the site does outside of itself, to be looked at and tried again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from leaderboard import outbox
from leaderboard.models import Delivery, Effect, Installation
from scheduler.models import Event

if TYPE_CHECKING:
    EffectModelAdmin = admin.ModelAdmin[Effect]
    DeliveryModelAdmin = admin.ModelAdmin[Delivery]
    InstallationModelAdmin = admin.ModelAdmin[Installation]
else:
    EffectModelAdmin = DeliveryModelAdmin = InstallationModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin:
    """Rows that the site alone writes."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class EffectAdmin(ReadOnlyAdmin, EffectModelAdmin):
    list_display = ("key", "state", "attempts", "not_before", "done_at", "problem")
    list_filter = ("state", "kind")
    search_fields = ("key", "problem")
    actions = ("again",)

    @admin.action(description="Do again", permissions=["view"])
    def again(self, request: HttpRequest, chosen: QuerySet[Effect]) -> None:
        """Whatever it was: a handler makes it as it should be by now, and doubles nothing."""
        for effect in chosen:
            outbox.enqueue(effect.kind, effect.key, effect.payload)
            Event.record(request.user.get_username(), effect, f"Asked for {effect.key} again.")
        messages.info(request, f"{len(chosen)} asked for again.")


class DeliveryAdmin(ReadOnlyAdmin, DeliveryModelAdmin):
    list_display = ("received_at", "event", "action", "subject", "state", "attempts", "problem")
    list_filter = ("state", "event")
    search_fields = ("guid", "subject", "problem")
    actions = ("again",)

    @admin.action(description="Work through again", permissions=["view"])
    def again(self, request: HttpRequest, chosen: QuerySet[Delivery]) -> None:
        """Only what still has its content, and is not waiting anyway."""
        told = list(chosen.exclude(payload={}).exclude(state=Delivery.State.NEW))
        fields = {"state": Delivery.State.NEW, "attempts": 0, "problem": "", "not_before": timezone.now()}
        for delivery in told:
            Event.record(request.user.get_username(), delivery, f"Had {delivery} read again.")
        Delivery.objects.filter(pk__in=[delivery.pk for delivery in told]).update(**fields)
        messages.info(request, f"{len(told)} will be read again within seconds.")


class InstallationAdmin(ReadOnlyAdmin, InstallationModelAdmin):
    list_display = ("account", "number", "suspended", "repositories", "created_at")
