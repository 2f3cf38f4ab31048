"""Deletes an account. Runs, scores, texts and lent hours stay, without a name."""

from __future__ import annotations

import re

from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet

from dailytrain.personal_data.export import list_events
from leaderboard.models import Entry, PullRequest, Run, Seat, StandingsTable
from scheduler.campaigns.models import Volunteer
from scheduler.models import Event, Job, Node

DELETED_USER = "deleted user"


class DeletionError(ValueError):
    """The account cannot be deleted yet; the message says why."""


@transaction.atomic
def delete_account(user: User) -> None:
    """Delete the user with sign-ins, addresses, tokens and notices, and take the name from all that stays."""
    if user.is_staff or user.is_superuser:
        raise DeletionError("This account has access to the admin. Ask a superuser to revoke its roles first.")
    accounts = SocialAccount.objects.filter(user=user, provider="github")
    logins = {str(account.extra_data.get("login", "")) for account in accounts} - {""}
    hide_author(user, logins)
    for node in Node.objects.filter(owner=user):
        hide_node(node)
    for volunteer in Volunteer.objects.filter(user=user):
        Volunteer.objects.filter(pk=volunteer.pk).update(name=f"Volunteer {volunteer.pk}")
    hide_events(user, logins)
    user.delete()


def hide_author(user: User, logins: set[str]) -> None:
    """Hide the author of the user's entries.

    An entry's author is free text, so the name of a local account proves nothing. A login on GitHub was verified, and
    counts where the entry belongs to no other account.
    """
    numbers = SocialAccount.objects.filter(user=user, provider="github").values_list("uid", flat=True)
    pulls = PullRequest.objects.filter(author_id__in=[int(uid) for uid in numbers if uid.isdigit()])
    own = Q(requested_by=user) | Q(pull_request__in=pulls) | Q(requested_by=None, author__in=logins)
    entries = Entry.objects.filter(pk__in=list(Entry.objects.filter(own).values_list("pk", flat=True)))
    pulls.update(author=DELETED_USER, author_id=None)
    hide_job_author(Run.objects.filter(entry__in=entries), entries)
    StandingsTable.objects.filter(track__entries__in=entries).update(version="")  # they are computed anew
    entries.update(author=DELETED_USER)


def hide_job_author(runs: QuerySet[Run], entries: QuerySet[Entry]) -> None:
    """Hide the author of all jobs of these runs and entries."""
    of_runs = Q(run__in=runs) | Q(scored_run__in=runs) | Q(scored_publication__run__in=runs) | Q(replay__run__in=runs)
    of_parts = Q(notebook_part__run__in=runs) | Q(seat__swarm__run__in=runs)
    of_entries = Q(traced_graph__entry__in=entries) | Q(pk__in=entries.values("smoke_job"))
    for condition in (of_runs, of_parts, of_entries):
        Job.objects.filter(pk__in=Job.objects.filter(condition).values("pk")).update(author=DELETED_USER)


def hide_node(node: Node) -> None:
    """Revoke the node's token, and replace its name in all rows."""
    name = f"node-{node.pk}"
    Run.objects.filter(node_name=node.name).update(node_name=name)
    Event.objects.filter(actor=f"node:{node.name}").update(actor=f"node:{name}")
    Seat.objects.filter(node=node).update(name=name)
    replace_words(Event.objects.filter(target_kind="node", target_id=node.pk), node.name, name)
    hardware = {**node.hardware, "hostname": ""} if node.hardware else {}
    Node.objects.filter(pk=node.pk).update(name=name, token_hash=None, shown=False, hardware=hardware)


def hide_events(user: User, logins: set[str]) -> None:
    name = user.get_username()
    replace_words(list_events(user), name, DELETED_USER)
    Event.objects.filter(actor=name).update(actor=DELETED_USER)
    for login in logins:
        events = Event.objects.filter(actor=f"github:{login}")
        replace_words(events, login, DELETED_USER)
        events.update(actor=DELETED_USER)


def replace_words(events: QuerySet[Event], name: str, replacement: str) -> None:
    """Replace a name in the sentences of events where it stands as a word: not within another word or name."""
    pattern = re.compile(rf"(?<![\w.+-]){re.escape(name)}(?![\w@+-]|\.\w)")
    changed = list(events.filter(sentence__contains=name))
    for event in changed:
        event.sentence = pattern.sub(lambda _: replacement, event.sentence)[:500]
    Event.objects.bulk_update(changed, ["sentence"], batch_size=500)
