"""The second step of signing in, for staff: a code from an app, or one of the codes that were written down before."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import urlencode

from allauth.account.authentication import get_authentication_records
from allauth.account.internal.flows.login import record_authentication
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.utils import is_mfa_enabled
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.urls import reverse

from scheduler.models import Event

SAID = {
    Authenticator.Type.TOTP: "an app for codes",
    Authenticator.Type.RECOVERY_CODES: "recovery codes",
}


class TwoStep(DefaultMFAAdapter):  # type: ignore[misc]
    """Keeps the secrets of the apps so that a stolen copy of the database alone is no second step."""

    def encrypt(self, text: str) -> str:
        return cipher().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        return cipher().decrypt(encrypted_text.encode()).decode()

    def get_totp_issuer(self) -> str:
        return settings.SITE_NAME

    def get_totp_label(self, user: User) -> str:
        return user.get_username()


def cipher() -> Fernet:
    """Return what the secrets are kept with: a key of the site's `SECRET_KEY`, so a new one of that ends them all."""
    key = HKDF(SHA256(), 32, salt=None, info=b"dailytrain two-step").derive(settings.SECRET_KEY.encode())
    return Fernet(base64.urlsafe_b64encode(key))


def is_needed(request: HttpRequest) -> bool:
    """Whether this person has to take the second step before the admin opens."""
    return request.user.is_active and bool(request.user.is_staff) and not is_satisfied(request)


def is_satisfied(request: HttpRequest) -> bool:
    """Return whether this session has passed the second step, or the site requires none."""
    return not settings.STAFF_TWO_STEP or taken(request)


def taken(request: HttpRequest) -> bool:
    """Whether the second step was taken in this session."""
    return any(record["method"] == "mfa" for record in get_authentication_records(request, request.user))


def page(request: HttpRequest) -> str:
    """Return where the second step is taken, or set up, and which page comes after."""
    ready = is_mfa_enabled(request.user, [Authenticator.Type.TOTP])
    name = "mfa_reauthenticate" if ready else "mfa_activate_totp"
    return f"{reverse(name)}?{urlencode({'next': request.get_full_path()})}"


# --- what allauth tells ----------------------------------------------------------------------------------------------


def added(request: HttpRequest, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    """Whoever sets up the app has just typed a code of it: that was the second step."""
    if authenticator.type == Authenticator.Type.TOTP:
        record_authentication(request, user, "mfa", id=authenticator.pk, type=authenticator.type)
    Event.record(user.get_username(), user, f"Set up {SAID[authenticator.type]} for signing in.")


def removed(request: HttpRequest, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    Event.record(user.get_username(), user, f"Gave up {SAID[authenticator.type]} for signing in.")


def failed(request: HttpRequest, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    Event.record("site", user, "A code for signing in was wrong.")
