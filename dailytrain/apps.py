from __future__ import annotations

from django.apps import AppConfig
from django.contrib.admin import apps as admin
from django.core.checks import Tags, register
from django.db.models.signals import post_save


class TrainAdminConfig(admin.AdminConfig):
    default = False  # INSTALLED_APPS names it; DailyTrainConfig is the default of this module
    default_site = "dailytrain.admin_site.DailyTrainAdminSite"

    def ready(self) -> None:
        """Connect the audit log. Deleting many rows at once would bypass it, so that action is disabled."""
        from django.contrib.admin import site
        from django.contrib.admin.models import LogEntry

        from dailytrain.admin_site import log_admin_change

        super().ready()
        site.disable_action("delete_selected")
        post_save.connect(log_admin_change, sender=LogEntry, dispatch_uid="audit")


class DailyTrainConfig(AppConfig):
    name = "dailytrain"

    def ready(self) -> None:
        from allauth.mfa import signals

        from dailytrain import error_reports, logs, migration_checks, sign_in, two_factor

        signals.authenticator_added.connect(two_factor.handle_authenticator_added)
        signals.authenticator_removed.connect(two_factor.handle_authenticator_removed)
        signals.authentication_failed.connect(two_factor.handle_authentication_failed)
        error_reports.start_error_reports()
        logs.connect_task_signals()
        register(migration_checks.check_known_migrations, Tags.database)
        register(sign_in.check_github_oauth)
        register(sign_in.check_open_signup, Tags.security, deploy=True)
