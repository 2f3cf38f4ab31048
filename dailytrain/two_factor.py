"""The second factor of staff: a code from an authenticator app, or a recovery code."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import urlencode

from allauth.account.authentication import get_authentication_records
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

from scheduler.models import SITE_ACTOR, Event

AUTHENTICATOR_NAMES = {
    Authenticator.Type.TOTP: "an authenticator app",
    Authenticator.Type.RECOVERY_CODES: "recovery codes",
}
SETUP_KEY = "authenticator_set_up_by"  # in a session: the user who has just set up the app in it


class MFAAdapter(DefaultMFAAdapter):  # type: ignore[misc]
    """Encrypts the secrets of authenticators, so that a stolen copy of the database alone gives no codes."""

    def encrypt(self, text: str) -> str:
        return get_cipher().encrypt(text.encode()).decode()

    def decrypt(self, encrypted_text: str) -> str:
        return get_cipher().decrypt(encrypted_text.encode()).decode()

    def get_totp_issuer(self) -> str:
        return settings.SITE_NAME

    def get_totp_label(self, user: User) -> str:
        return user.get_username()


def get_cipher() -> Fernet:
    """Return the cipher of authenticator secrets. Its key is derived from `SECRET_KEY`: changing that resets them."""
    key = HKDF(SHA256(), 32, salt=None, info=b"dailytrain two-step").derive(settings.SECRET_KEY.encode())
    return Fernet(base64.urlsafe_b64encode(key))


def is_satisfied(request: HttpRequest) -> bool:
    """Return whether this session has passed the second factor, or the site requires none."""
    return not settings.STAFF_TWO_STEP or is_verified(request)


def is_verified(request: HttpRequest) -> bool:
    """Return whether this session has passed the second factor, by a code or by setting up the app."""
    if request.session.get(SETUP_KEY) == request.user.pk is not None:
        return True
    return any(record["method"] == "mfa" for record in get_authentication_records(request, request.user))


def get_verification_url(request: HttpRequest) -> str:
    """Return the address of the form for a code, or of the setup, which then leads back to this page."""
    is_set_up = is_mfa_enabled(request.user, [Authenticator.Type.TOTP])
    name = "mfa_reauthenticate" if is_set_up else "mfa_activate_totp"
    return f"{reverse(name)}?{urlencode({'next': request.get_full_path()})}"


# --- receivers of allauth's signals ----------------------------------------------------------------------------------


def handle_authenticator_added(request: HttpRequest, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    """Log it. Setting up the app takes a code of it, so it counts as the second factor of this session."""
    if authenticator.type == Authenticator.Type.TOTP:
        request.session[SETUP_KEY] = user.pk
        authenticator.wrap().validate_code(request.POST.get("code", ""))  # each code is accepted once
    Event.record(user.get_username(), user, f"Set up {AUTHENTICATOR_NAMES[authenticator.type]} for sign-in.")


def handle_authenticator_removed(request: HttpRequest, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    """Log it. The next visit to the admin needs a second factor again."""
    request.session.pop(SETUP_KEY, None)
    Event.record(user.get_username(), user, f"Removed {AUTHENTICATOR_NAMES[authenticator.type]} for sign-in.")


def handle_authentication_failed(request: HttpRequest, user: User, authenticator: Authenticator, **kwargs: Any) -> None:
    Event.record(SITE_ACTOR, user, "A code for sign-in was wrong.")
