"""How volunteers come in: with a token that lets in one machine, for packets and nothing else. No account is needed."""

from __future__ import annotations

from django.contrib.auth.models import AbstractBaseUser

from scheduler import auth, pace
from scheduler.models import JoinToken
from scheduler.refusals import SlowDown

HOURS = 24.0


def token(address: str, user: AbstractBaseUser | None = None) -> str:
    """Return a join token for a volunteer; with a user what is written counts as theirs. Raise SlowDown.

    `address`: of whoever asks. A token costs nothing, and so gives little: see `reputation`.
    """
    if not pace.allows("volunteer", address):
        raise SlowDown("Many tokens were asked for from this address: please try again in an hour.")
    made = auth.new_join_token(owner=user, hours=HOURS)
    JoinToken.objects.filter(token_hash=auth.digest(made)).update(for_packets=True)
    return made
