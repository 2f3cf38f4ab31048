"""Deletes an account. Runs, scores, texts and lent hours stay, without a name."""

from __future__ import annotations

import re
from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Q, QuerySet

from leaderboard.api import run_requests
from leaderboard.models import Entry, OutboxMessage, PullRequest, Replay, Run, Seat, StandingsTable, SwarmEvent
from scheduler.campaigns.models import Volunteer
from scheduler.models import Event, FailureReport, Job, Lease, LogChunk, Node, ResultCheck

DELETED_USER = "deleted user"
RUN_RELATIONS = (
    "run",
    "scored_run",
    "scored_publication__run",
    "replay__run",
    "notebook_part__run",
    "seat__swarm__run",
)
"""From a job to its run."""


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
        hide_node(node, user.get_username())
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
    requests = OutboxMessage.objects.filter(kind=run_requests.KIND)
    requests.filter(Q(payload__user=user.pk) | Q(payload__job__actor__in=list(logins))).delete()
    hide_job_author(Run.objects.filter(entry__in=entries), entries)
    StandingsTable.objects.filter(track__entries__in=entries).update(version="")  # they are computed anew
    entries.update(author=DELETED_USER)


def hide_job_author(runs: QuerySet[Run], entries: QuerySet[Entry]) -> None:
    """Hide the author of all jobs of these runs and entries."""
    of_runs = [Q(**{f"{relation}__in": runs}) for relation in RUN_RELATIONS]
    of_entries = Q(traced_graph__entry__in=entries) | Q(pk__in=entries.values("smoke_job"))
    for condition in (*of_runs, of_entries):
        Job.objects.filter(pk__in=Job.objects.filter(condition).values("pk")).update(author=DELETED_USER)


def hide_node(node: Node, owner: str) -> None:
    """Revoke the node's token, and replace its name, its host's and its owner's in all rows about its work."""
    name = f"node-{node.pk}"
    jobs = set(Job.objects.filter(leases__node=node).values_list("pk", flat=True))
    runs = {pk for row in Job.objects.filter(pk__in=jobs).values_list(*RUN_RELATIONS) for pk in row if pk is not None}
    nodes = {node.pk, *FailureReport.objects.filter(job__in=jobs).values_list("node", flat=True)}
    words = {node.name: name, node.hardware.get("hostname"): "host", owner: DELETED_USER}
    for word, replacement in words.items():
        if word:
            hide_name(word, replacement, jobs, runs, nodes)
    Run.objects.filter(node_name=node.name).update(node_name=name)
    Event.objects.filter(actor=f"node:{node.name}").update(actor=f"node:{name}")
    Seat.objects.filter(node=node).update(name=name)
    SwarmEvent.objects.filter(name=node.name, swarm__run__in=runs).update(name=name)
    hardware = {**node.hardware, "hostname": ""} if node.hardware else {}
    Node.objects.filter(pk=node.pk).update(name=name, token_hash=None, shown=False, hardware=hardware)


def hide_events(user: User, logins: set[str]) -> None:
    """Replace the user's names in the events about this user, and in all rows about what the user did."""
    about = Q(target_kind="user", target_id=user.pk)
    for actor, name in [(user.get_username(), user.get_username()), *((f"github:{login}", login) for login in logins)]:
        own = Event.objects.filter(actor=actor)
        targets: dict[str, set[int]] = {"job": set(), "run": set(), "node": set()}
        for kind, pk in own.filter(target_kind__in=targets).values_list("target_kind", "target_id"):
            targets[kind].add(pk)
        hide_name(name, DELETED_USER, targets["job"], targets["run"], targets["node"])
        replace_words(Event.objects.filter(about | Q(actor=actor)), "sentence", name, DELETED_USER)
        own.update(actor=DELETED_USER)


def hide_name(name: str, replacement: str, jobs: set[int], runs: set[int], nodes: set[int]) -> None:
    """Replace a name in the texts about these jobs, runs and nodes, logs included."""
    about_jobs, about_runs = Q(target_kind="job", target_id__in=jobs), Q(target_kind="run", target_id__in=runs)
    events = Event.objects.filter(about_jobs | about_runs | Q(target_kind="node", target_id__in=nodes))
    texts: list[tuple[QuerySet[Any], str]] = [
        (events, "sentence"),
        (Job.objects.filter(pk__in=jobs), "reason"),
        (Job.objects.filter(pk__in=jobs), "stop_reason"),
        (Lease.objects.filter(job__in=jobs), "reason"),
        (LogChunk.objects.filter(lease__job__in=jobs), "text"),
        (FailureReport.objects.filter(job__in=jobs), "reason"),
        (ResultCheck.objects.filter(Q(job__in=jobs) | Q(node__in=nodes)), "sentence"),
        (Run.objects.filter(pk__in=runs), "reason"),
        (Replay.objects.filter(run__in=runs), "sentence"),
        (Node.objects.filter(pk__in=nodes), "reason"),
    ]
    for rows, field in texts:
        replace_words(rows, field, name, replacement)


def replace_words(rows: QuerySet[Any], field: str, name: str, replacement: str) -> None:
    """Replace a name in a text of rows where it stands as a word: not within another word or name."""
    pattern = re.compile(rf"(?<![\w.+-]){re.escape(name)}(?![\w@+-]|\.\w)")
    longest = rows.model._meta.get_field(field).max_length
    changed = list(rows.filter(**{f"{field}__contains": name}))
    for row in changed:
        setattr(row, field, pattern.sub(lambda _: replacement, getattr(row, field))[:longest])
    rows.model._default_manager.bulk_update(changed, [field], batch_size=500)
