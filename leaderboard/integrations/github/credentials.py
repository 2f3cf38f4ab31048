"""Who the site is to GitHub: an App with its installations, or the owner of a plain token."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import jwt
from django.conf import settings
from django.core.cache import caches
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from leaderboard import outbox

if TYPE_CHECKING:
    from leaderboard.integrations.github.connection import Connection

JWT_LIFE = timedelta(minutes=9)
"""GitHub takes ten minutes at most, counted by its own clock."""
CLOCK_DRIFT = timedelta(minutes=1)
TOKEN_MARGIN = timedelta(minutes=5)
"""An installation's token lives for an hour; it is not used in its last minutes."""


class NotConnectedError(outbox.PermanentError):
    """The site has no access to this repository on GitHub. It works without."""


class Credentials(Protocol):
    identity: str
    """Rate limits and kept answers belong to it."""
    is_app: bool
    """Whether this is an App's installation, which may make check runs."""

    def authorization(self) -> str:
        """Return the header's value."""

    def renew(self) -> bool:
        """Forget a token that GitHub no longer takes; return whether there will be another."""


class PlainToken:
    is_app = False

    def __init__(self, token: str) -> None:
        self.token = token
        self.identity = "token"

    def authorization(self) -> str:
        return f"Bearer {self.token}"

    def renew(self) -> bool:
        return False


class AppToken:
    """The App itself: only what concerns the App may be asked with it."""

    is_app = False

    def __init__(self, app: str, key: str) -> None:
        self.app, self.key = app, key
        self.identity = f"app-{app}"

    def authorization(self) -> str:
        now = timezone.now()
        claims = {"iat": now - CLOCK_DRIFT, "exp": now - CLOCK_DRIFT + JWT_LIFE, "iss": self.app}
        try:
            return f"Bearer {jwt.encode(claims, self.key, algorithm='RS256')}"
        except (ValueError, TypeError, jwt.PyJWTError) as error:
            raise NotConnectedError("GITHUB_PRIVATE_KEY is not a private key in PEM form.") from error

    def renew(self) -> bool:
        return False


class InstallationToken:
    """The App, installed for an account. Its tokens stay in this process's memory."""

    is_app = True

    def __init__(self, app: Connection, installation: int) -> None:
        self.app, self.installation = app, installation
        self.identity = f"installation-{installation}"

    def authorization(self) -> str:
        kept = caches["github"]
        token = kept.get(self.identity)
        if token is None:
            answer = self.app.send("POST", f"/app/installations/{self.installation}/access_tokens")
            token = answer["token"]
            ends = parse_datetime(answer["expires_at"])
            assert ends is not None, "GitHub's times are ISO 8601"
            life = (ends - timezone.now() - TOKEN_MARGIN).total_seconds()
            if life > 0:
                kept.set(self.identity, token, life)
        return f"Bearer {token}"

    def renew(self) -> bool:
        return bool(caches["github"].delete(self.identity))


def get_app_token() -> AppToken | None:
    if not (settings.GITHUB_APP_ID and settings.GITHUB_PRIVATE_KEY):
        return None
    return AppToken(settings.GITHUB_APP_ID, settings.GITHUB_PRIVATE_KEY)
