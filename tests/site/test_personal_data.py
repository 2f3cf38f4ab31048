"""Export of everything about a person, and deletion of the account, which keeps results but not the name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from dailytrain.personal_data.deletion import DELETED_USER, delete_account, replace_words
from dailytrain.personal_data.export import list_relations
from leaderboard import permissions
from leaderboard.models import (
    ApiToken,
    Entry,
    Publication,
    PullRequest,
    Run,
    Seat,
    Subscription,
    Swarm,
    TracedGraph,
)
from scheduler import leases, node_tokens
from scheduler.campaigns.models import Volunteer
from scheduler.models import Event, Job, Lease, LogChunk, Node, Sponsor
from tests.support import scene

pytestmark = [pytest.mark.sql, pytest.mark.django_db]
NAME = "wilhelmina"
PASSWORD = "a password of this test"
HOST = "wils-host"


@pytest.fixture
def user() -> User:
    """A person with an entry, runs, a node, texts, notices and tokens."""
    night = scene.create_night_board()
    user = User.objects.create_user(NAME, email="wil@example.org", password=PASSWORD)
    SocialAccount.objects.create(user=user, provider="github", uid="77", extra_data={"login": "wil-on-github"})
    pull = PullRequest.objects.create(repository="trains/daily", number=7, author="wil-on-github", author_id=77)
    Entry.objects.filter(pk=night["entry"].pk).update(requested_by=user, author="wil-on-github", pull_request=pull)
    fields = {"owner": user, "name": f"{NAME}s-cellar", "token_hash": "secret-hash"}
    Node.objects.filter(pk=night["node"].pk).update(**fields, hardware={**night["node"].hardware, "hostname": HOST})
    Run.objects.filter(node_name=night["node"].name).update(node_name=f"{NAME}s-cellar")
    train, lease = night["train"], Lease.objects.get(job=night["train"].job)
    node_tokens.create_join_token(owner=user)
    LogChunk.objects.create(lease=lease, offset=1000, text=f"{HOST}: reading /home/{NAME}/data\n")
    leases.lose_lease(lease, f"{NAME}s-cellar fell silent.")
    Event.record("site", train, f"Resumes from step 10 on {NAME}s-cellar.")
    Run.objects.filter(pk=night["best"].pk).update(reason=f"Cancelled by {NAME}: a typo.")
    Event.record(NAME, night["best"], f"Cancelled by {NAME}: a typo.")
    Sponsor.objects.create(user=user, name="Wilhelmina W.")
    Volunteer.objects.create(user=user, name=NAME)
    Subscription.objects.create(user=user, kind="email", address="wil@example.org")
    ApiToken.objects.create(owner=user, name="ci", token_hash="api-hash")
    Event.objects.create(actor=NAME, target_kind="user", target_id=user.pk, sentence=f"{NAME} is a core member now.")
    Event.objects.create(
        actor="github:wil-on-github", target_kind="entry", target_id=night["entry"].pk, sentence="Submitted."
    )
    return user


def test_export_has_every_relation_and_no_secret(user: User, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("export_person", NAME)
    text = capsys.readouterr().out
    rows: dict[str, list[dict[str, Any]]] = json.loads(text)["rows"]
    filled = {"auth.user", "leaderboard.entry", "scheduler.node", "scheduler.sponsor", "scheduler.jointoken"}
    filled |= {"campaigns.volunteer", "leaderboard.subscription", "leaderboard.apitoken", "scheduler.event"}
    assert filled | {"socialaccount.socialaccount"} <= set(rows)
    assert {relation.related_model._meta.label_lower for relation in list_relations()} >= filled - {
        "auth.user", "scheduler.event"
    }  # fmt: skip
    assert "wil@example.org" in text
    for secret in ("secret-hash", "api-hash", user.password):
        assert secret not in text
    with pytest.raises(CommandError, match="There is no user 'nobody'"):
        call_command("export_person", "nobody")


def test_page_shows_and_downloads_own_data_only(client: Client, user: User) -> None:
    for path in ("/accounts/your-data/", "/accounts/your-data/data.json"):
        assert client.get(path).status_code == 302, "only after signing in"
    client.force_login(user)
    assert "<code>leaderboard.entry</code>" in client.get("/accounts/your-data/").content.decode()
    response = client.get("/accounts/your-data/data.json")
    assert "attachment" in response.headers["Content-Disposition"]
    assert response.json()["username"] == NAME
    other = User.objects.create_user("otto")
    client.force_login(other)
    others = client.get("/accounts/your-data/data.json")
    assert others.json()["rows"]["auth.user"][0]["username"] == "otto"
    assert NAME not in others.content.decode()


def test_deleted_account_leaves_results_without_the_name(client: Client, user: User) -> None:
    runs, leases = Run.objects.count(), Lease.objects.count()
    client.force_login(user)
    delete = client.post("/accounts/your-data/delete/", {"username": NAME})
    assert delete.headers["Location"].startswith("/accounts/reauthenticate/")
    client.post(delete.headers["Location"], {"password": "a wrong one"})
    assert User.objects.filter(pk=user.pk).exists()
    client.post("/accounts/reauthenticate/", {"password": PASSWORD})
    assert client.post("/accounts/your-data/delete/", {"username": "x"}).status_code == 400
    assert User.objects.filter(pk=user.pk).exists()
    assert client.post("/accounts/your-data/delete/", {"username": NAME}).headers["Location"] == "/privacy/"
    assert (Run.objects.count(), Lease.objects.count()) == (runs, leases)
    assert not User.objects.filter(username=NAME).exists()
    client.logout()
    pages = ["/", "/queue/", "/nodes/", "/sponsors/", "/calendar/", "/api/v1/nodes", "/api/v1/runs", "/api/v1/entries"]
    pages += [f"/entries/{entry.pk}/" for entry in Entry.objects.all()] + [
        f"/runs/{run.pk}/" for run in Run.objects.all()
    ]
    for page in pages:
        content = client.get(page).content.decode().lower()
        assert [name for name in (NAME, "wil-on-github") if name in content] == [], page
    assert not find_text(NAME, "wil-on-github", HOST)


def test_deletion_keeps_the_names_of_other_authors(user: User) -> None:
    track = Entry.objects.get(requested_by=user).track
    common = {"track": track, "repository": "trains/daily", "author": "wil-on-github"}
    mine = Entry.objects.create(**common, sha="a" * 40)
    other = User.objects.create_user("other")
    theirs = Entry.objects.create(**common, sha="b" * 40, requested_by=other)
    stranger = User.objects.create_user("wil-on-github")
    SocialAccount.objects.create(user=stranger, provider="other", uid="77", extra_data={"login": "wil-on-github"})
    delete_account(stranger)
    assert set(Entry.objects.filter(author="wil-on-github")) >= {mine, theirs}, "a local name is no proof of authorship"
    delete_account(user)
    assert Entry.objects.get(pk=mine.pk).author == DELETED_USER
    assert Entry.objects.get(pk=theirs.pk).author == "wil-on-github"


def test_deletion_hides_the_author_of_every_job(user: User) -> None:
    run = Run.objects.filter(entry__requested_by=user, job__isnull=False).first()
    assert run is not None
    assert run.job is not None
    score, trace, seat, release = (Job.objects.create(kind=kind, release=run.job.release, author="wil-on-github")
                                   for kind in ("score", "smoke", "seat", "score"))  # fmt: skip
    Run.objects.filter(pk=run.pk).update(score_job=score)
    TracedGraph.objects.create(entry=run.entry, track=run.track, season=run.season, config_hash="c", job=trace)
    Seat.objects.create(swarm=Swarm.objects.create(run=run), job=seat)
    Publication.objects.create(run=run, name="x", step=1, manifest={}, reason="x", score_job=release)
    delete_account(user)
    assert {job.author for job in Job.objects.filter(pk__in=[score.pk, trace.pk, seat.pk, release.pk])} == {
        DELETED_USER
    }


def test_replaced_name_is_a_whole_word() -> None:
    texts = {
        "a is a core member.": "X is X core member.",
        "Started by a.": "Started by X.",
        "@a: ready": "@X: ready",
        "node-a, a-node, a.b, data": "node-a, a-node, a.b, data",
    }
    for sentence in texts:
        Event.objects.create(actor="a", target_kind="user", target_id=1, sentence=sentence)
    replace_words(Event.objects.all(), "sentence", "a", "X")
    assert list(Event.objects.order_by("pk").values_list("sentence", flat=True)) == list(texts.values())


def find_text(*texts: str) -> list[str]:
    """Return the tables that contain one of the texts."""
    found = []
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')  # noqa: S608
            rows = repr(cursor.fetchall()).lower()
            found += [f"{table}: {text}" for text in texts if text in rows]
    return found


def test_account_with_access_to_the_admin_is_not_deleted(client: Client, user: User) -> None:
    permissions.grant_role(user, permissions.COORDINATOR, None)
    client.force_login(user)
    client.post("/accounts/reauthenticate/", {"password": PASSWORD})
    response = client.post("/accounts/your-data/delete/", {"username": NAME})
    assert response.status_code == 400
    assert "Ask a superuser to revoke its roles first" in response.content.decode()
