"""URLs of the pages, the public API, the node API and the admin."""

from __future__ import annotations

from allauth.account import views as account
from allauth.mfa.base import views as mfa
from allauth.mfa.recovery_codes import views as recovery_codes
from allauth.mfa.totp import views as totp
from allauth.socialaccount import views as social
from allauth.socialaccount.providers.github import views as github
from django.contrib import admin
from django.contrib.sitemaps import views as sitemaps
from django.urls import URLPattern, include, path
from django.views.generic import RedirectView

from dailytrain.health import healthz, readyz
from dailytrain.personal_data import views as personal_data
from dailytrain.sign_in import allow_redirect_to_github, require_github
from dailytrain.sitemaps import SITEMAPS
from dailytrain.views import LoginView, documentation, llms, robots
from leaderboard.api import api
from leaderboard.integrations.github.webhook import webhook
from scheduler.campaigns.node_routes import router as packet_router
from scheduler.node_api.routes import node_api
from scheduler.release.views import download, download_key

node_api.add_router("", packet_router)

# The URLs of allauth that the site has pages for. It sends no e-mail, so passwords are not reset by e-mail.
accounts: list[URLPattern] = [
    path("", RedirectView.as_view(pattern_name="my-nodes"), name="socialaccount_connections"),
    path("login/", allow_redirect_to_github(LoginView.as_view()), name="account_login"),
    path("signup/", allow_redirect_to_github(account.signup), name="account_signup"),
    path("logout/", account.logout, name="account_logout"),
    path("reauthenticate/", account.reauthenticate, name="account_reauthenticate"),
    path("inactive/", account.account_inactive, name="account_inactive"),
    path("two-step/", mfa.index, name="mfa_index"),
    path("two-step/code/", mfa.authenticate, name="mfa_authenticate"),
    path("two-step/again/", mfa.reauthenticate, name="mfa_reauthenticate"),
    path("two-step/app/", totp.activate_totp, name="mfa_activate_totp"),
    path("two-step/app/remove/", totp.deactivate_totp, name="mfa_deactivate_totp"),
    path("two-step/recovery-codes/", recovery_codes.view_recovery_codes, name="mfa_view_recovery_codes"),
    path("two-step/recovery-codes/new/", recovery_codes.generate_recovery_codes, name="mfa_generate_recovery_codes"),
    path("your-data/", personal_data.your_data, name="your-data"),
    path("your-data/data.json", personal_data.download, name="your-data-download"),
    path("your-data/delete/", personal_data.delete, name="account-delete"),
    path("github/login/", require_github(allow_redirect_to_github(github.oauth2_login)), name="github_login"),
    path("github/login/callback/", require_github(github.oauth2_callback), name="github_callback"),
    path("github/cancelled/", social.login_cancelled, name="socialaccount_login_cancelled"),
    path("github/error/", social.login_error, name="socialaccount_login_error"),
    path("github/signup/", social.signup, name="socialaccount_signup"),
]

handler404 = "dailytrain.views.page_not_found"
urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("docs/", documentation, name="docs"),
    path("docs/<path:page>", documentation),
    path("privacy/", personal_data.privacy, name="privacy"),
    path("robots.txt", robots, name="robots"),
    path("llms.txt", llms, name="llms"),
    path("sitemap.xml", sitemaps.index, {"sitemaps": SITEMAPS}, name="sitemaps"),
    path(
        "sitemap-<section>.xml", sitemaps.sitemap, {"sitemaps": SITEMAPS}, name="django.contrib.sitemaps.views.sitemap"
    ),
    path("admin/", admin.site.urls),
    path("api/v1/", api.urls),
    path("api/node/v1/", node_api.urls),
    path("accounts/", include(accounts)),
    path("download/signing-key.pem", download_key, name="download-key"),
    path("download/<str:name>", download, name="download"),
    path("github/webhook", webhook, name="github-webhook"),
    path("campaigns/", include("scheduler.campaigns.urls")),
    path("sponsors/", include("scheduler.sponsors.urls")),
    path("", include("leaderboard.urls")),
]
