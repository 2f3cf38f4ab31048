from __future__ import annotations

from django.apps import AppConfig
from django.contrib.admin import apps as admin
from django.core.checks import Tags, register
from django.db.models.signals import post_save


class TrainAdminConfig(admin.AdminConfig):
    default = False  # named in INSTALLED_APPS; of this module's two, the other is the project's own
    default_site = "dailytrain.admin_site.TrainAdmin"

    def ready(self) -> None:
        """Rows go one by one, each with its line in the audit log: many at once would leave none."""
        from django.contrib.admin import site
        from django.contrib.admin.models import LogEntry

        from dailytrain.admin_site import logged

        super().ready()
        site.disable_action("delete_selected")
        post_save.connect(logged, sender=LogEntry, dispatch_uid="audit")


class DailyTrainConfig(AppConfig):
    name = "dailytrain"

    def ready(self) -> None:
        from allauth.mfa import signals

        from dailytrain import sign_in, two_factor

        signals.authenticator_added.connect(two_factor.added)
        signals.authenticator_removed.connect(two_factor.removed)
        signals.authentication_failed.connect(two_factor.failed)
        register(sign_in.half_configured)
        register(sign_in.open_doors, Tags.security, deploy=True)
