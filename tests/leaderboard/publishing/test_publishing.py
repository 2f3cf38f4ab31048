"""Publication of runs on the Hub: which runs, the repository's content, and each commit exactly once."""

from __future__ import annotations

import hashlib
import re
import time
from datetime import timedelta
from typing import Any

import pytest
import requests
import yaml
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from leaderboard import actions, events, outbox, runs
from leaderboard.models import Entry, NotebookPart, OutboxMessage, Publication, Run
from leaderboard.publishing import publications
from leaderboard.rankings import trust
from leaderboard.run_states import RunError
from scheduler import storage
from scheduler.models import Event, JobFile, Node
from tests.leaderboard.conftest import create_checkpoint, finish_run, publish_release
from tests.support import hub_server
from tests.support.graph_jobs import attach_graph, store_graph
from tests.support.hub_server import Hub, Repository
from tests.support.node_jobs import lease_job
from tests.support.waits import WAIT_SECONDS
from trainer.protocol import GRAPH_FILES

pytestmark = pytest.mark.processes


@pytest.fixture
def finished_run(run: Run, node: Node) -> Run:
    scored_run = finish_run(run, node)
    JobFile.objects.create(
        job_id=scored_run.score_job_id, path="tokenizer.json", blob=storage.store_bytes(b'{"model": {}}')
    )
    return scored_run


def process_outbox_now() -> None:
    """Make all outbox messages due and process them."""
    OutboxMessage.objects.update(not_before=timezone.now())
    outbox.process_due()
    outbox.process_due(are_long=True)


def get_repository(hub: Hub, run: Run) -> Repository:
    return hub.repositories[f"trains/smear-run-{run.pk}"]


def list_commit_titles(hub: Hub, run: Run) -> list[str]:
    return [commit.title for commit in get_repository(hub, run).commits[1:]]


def test_run_published_by_maintainer_is_on_the_hub(hub: Hub, finished_run: Run, maintainer: User) -> None:
    graph = store_graph(finished_run.entry)
    attach_graph(graph.job)
    Run.objects.filter(pk=finished_run.pk).update(graph=graph)
    finished_run = Run.objects.select_related("entry", "track", "job", "checkpoint").get(pk=finished_run.pk)
    actions.perform_run_action(finished_run, "publish", maintainer, is_maintainer=True)
    process_outbox_now()
    message = OutboxMessage.objects.get(key=f"hub.run:{finished_run.pk}")
    assert (message.state, message.problem) == (OutboxMessage.State.DONE, "")
    commit = get_repository(hub, finished_run).head
    assert list_commit_titles(hub, finished_run) == [f"Run {finished_run.pk}: final weights, step 20"]
    step = "dailytrain/checkpoints/step-00000020"
    stored = dict(JobFile.objects.filter(job=graph.job).values_list("path", "blob"))
    assert set(stored) == {f"graph/{name}" for name in GRAPH_FILES}
    assert {path: hashlib.sha256(commit.files[f"dailytrain/{path}"]).hexdigest() for path in stored} == stored
    assert {name for name in commit.files if name.startswith("dailytrain/")} == {
        *(f"dailytrain/{path}" for path in stored),
        f"{step}/model.safetensors",
        "dailytrain/run.json",
        "dailytrain/source.tar",
        "dailytrain/tokenizer.json",
    }
    assert commit.files[f"{step}/model.safetensors"] == b"weights at 20"
    assert commit.files["curve.png"].startswith(b"\x89PNG")
    assert b"train,10," in commit.files["curve.csv"]
    publication = Publication.objects.get()
    assert (publication.repository, publication.commit) == (f"trains/smear-run-{finished_run.pk}", commit.id)
    assert publications.get_hub_url(publication) == f"{hub.url}/trains/smear-run-{finished_run.pk}"
    sentence = f"Published as {publication.repository} on the Hub."
    assert Event.objects.about(finished_run).filter(sentence=sentence).count() == 1


def test_model_card_escapes_user_text(hub: Hub, finished_run: Run) -> None:
    entry = finished_run.entry
    entry.title, entry.hypothesis = "[x](javascript:1) | <img src=x>", "---\nlicense: mit\n# Big"
    entry.architecture, entry.author = "a`b", "@everyone"
    entry.save()
    publications.publish_run(finished_run, "Asked.")
    process_outbox_now()
    (repository,) = hub.repositories.values()
    head, card = repository.head.files["README.md"].decode().split("---\n", 2)[1:]
    assert yaml.safe_load(head)["license"] == "apache-2.0"
    assert not re.search(r"(?<!\\)\]\(javascript|(?<!\\)<img|^# Big|@everyone|a`b", card, re.MULTILINE)


def test_nightly_run_and_record_are_published_automatically(hub: Hub, run: Run, node: Node) -> None:
    finish_run(run, node)
    events.announce_events()
    assert not Publication.objects.exists()
    trust.apply_trust_event(run, trust.TrustEvent.RECORD, actor="site", message="A record.")
    events.announce_events()
    process_outbox_now()
    assert Publication.objects.get().reason == "It holds a record."
    assert list_commit_titles(hub, run) == [f"Run {run.pk}: final weights, step 20"]
    nightly = runs.make_run(run.entry, run.track, purpose=Run.Purpose.NIGHTLY)
    runs.queue_run(nightly)
    finish_run(nightly, node)
    events.announce_events()
    process_outbox_now()
    assert Publication.objects.get(run=nightly).reason == "It is a nightly train of main."
    assert get_repository(hub, nightly).head.files["README.md"]


def test_publishing_needs_a_maintainer_a_hub_and_final_weights(
    site: Any, run: Run, node: Node, maintainer: User, hub: Hub
) -> None:
    def can_publish(user: User) -> bool:
        allowed = actions.list_run_actions(user, run, is_maintainer=user == maintainer)
        return "publish" in [action.name for action in allowed]

    with pytest.raises(RunError, match="there are no final weights to publish"):
        publications.publish_run(run, "Asked.")
    finish_run(run, node)
    author = run.entry.requested_by = User.objects.create_user("ada")
    assert (can_publish(author), can_publish(maintainer)) == (False, True)
    site.HUB_ORGANIZATION = ""
    assert not publications.is_connected()
    assert not can_publish(maintainer)
    publications.publish_run(run, "Asked.")
    assert Publication.objects.get().published_at is None, "its weights are kept on the site"
    assert not OutboxMessage.objects.filter(kind="hub").exists()


def test_changed_trust_updates_card_without_resending_weights(hub: Hub, finished_run: Run) -> None:
    publications.publish_run(finished_run, "Asked.")
    process_outbox_now()
    events.announce_events()
    process_outbox_now()
    sent_bytes = hub.sent_bytes
    assert len(list_commit_titles(hub, finished_run)) == 1  # the event of publishing starts no second upload
    trust.apply_trust_event(finished_run, trust.TrustEvent.DISPUTE, actor="site", message="A replay contradicts it.")
    events.announce_events()
    process_outbox_now()
    assert len(list_commit_titles(hub, finished_run)) == 2
    assert b"contradicts it" in get_repository(hub, finished_run).head.files["README.md"]
    assert "dailytrain/source.tar" in get_repository(hub, finished_run).head.files
    assert hub.sent_bytes - sent_bytes < len(get_repository(hub, finished_run).head.files["curve.png"]) + 1
    events.announce_events()
    process_outbox_now()
    assert len(list_commit_titles(hub, finished_run)) == 2


# --- failures --------------------------------------------------------------------------------------------------------


class KilledError(BaseException):
    """Ends the process as a kill does: not an `Exception`, so no handler catches it."""


@pytest.mark.slow
@pytest.mark.services
@pytest.mark.parametrize("moment", ["before", "after"])
def test_publishing_killed_at_any_request_resumes_and_commits_once(
    hub: Hub, finished_run: Run, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Each attempt is killed one request later, before it is sent or before its response is read."""
    send = requests.Session.send
    requests_left = 0

    def send_and_crash(session: Any, request: Any, **options: Any) -> Any:
        nonlocal requests_left
        requests_left -= 1
        if requests_left < 0 and moment == "before":
            raise KilledError
        answer = send(session, request, **options)
        if requests_left < 0:
            raise KilledError
        return answer

    publications.publish_run(finished_run, "Asked.")
    message = OutboxMessage.objects.get(key=f"hub.run:{finished_run.pk}")
    crash_count = 0
    for requests_left in range(40):  # noqa: B007
        OutboxMessage.objects.update(not_before=timezone.now(), claimed_until=timezone.now() - timedelta(minutes=1))
        with monkeypatch.context() as patched:
            patched.setattr(requests.Session, "send", send_and_crash)
            try:
                outbox.process_message(message.pk)
            except KilledError:
                crash_count += 1
                continue
        break
    message.refresh_from_db()
    assert crash_count > 5
    assert (message.state, message.problem) == (OutboxMessage.State.DONE, "")
    assert list_commit_titles(hub, finished_run) == [f"Run {finished_run.pk}: final weights, step 20"]
    uploads = [path for method, path, status in hub.requests if method == "PUT" and status == 200]
    assert len(uploads) == len(set(uploads)) > 1  # no file was sent twice
    assert Event.objects.about(finished_run).filter(sentence__startswith="Published").count() == 1


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/api/repos/create", 401, "rejected the token"),
        ("/api/models/.*/commits/", 404, "has no repository trains/smear-run-"),
        ("/api/models/.*/commit/", 403, "Permission denied by the Hub"),
        ("/api/models/.*/commit/", 422, "rejected the upload: name is taken"),
    ],
)
def test_hub_rejection_fails_message_with_reason(
    hub: Hub, finished_run: Run, path: str, status: int, sentence: str
) -> None:
    hub.fail_requests("POST" if "commits" not in path else "GET", path, status, times=9, message="name is taken")
    publications.publish_run(finished_run, "Asked.")
    process_outbox_now()
    message = OutboxMessage.objects.get(kind="hub")
    assert message.state == OutboxMessage.State.FAILED
    assert sentence in message.problem
    assert hub_server.TOKEN not in message.problem


def test_concurrent_commit_on_the_hub_is_not_overwritten(hub: Hub, finished_run: Run) -> None:
    """Another commit changed the parent, as a second worker or a person does."""

    def add_other_commit(method: str, path: str) -> None:
        if path.endswith("/commit/main"):
            hub.before_request = lambda method, path: None
            get_repository(hub, finished_run).add_commit(
                "A typo", "", dict(get_repository(hub, finished_run).head.files)
            )

    hub.before_request = add_other_commit
    publications.publish_run(finished_run, "Asked.")
    process_outbox_now()
    assert "answered 412" in OutboxMessage.objects.get(kind="hub").problem
    process_outbox_now()
    assert list_commit_titles(hub, finished_run) == ["A typo", f"Run {finished_run.pk}: final weights, step 20"]


def test_repository_of_other_site_is_not_changed(hub: Hub, finished_run: Run, settings: Any) -> None:
    publications.publish_run(finished_run, "Asked.")
    process_outbox_now()
    settings.SITE_URL = "https://other.example"
    message = OutboxMessage.objects.get(kind="hub")
    outbox.enqueue(message.kind, message.key, message.payload)
    process_outbox_now()
    message.refresh_from_db()
    assert message.state == OutboxMessage.State.FAILED
    assert message.problem.startswith(
        f"trains/smear-run-{finished_run.pk} holds what came from http://127.0.0.1:8000/runs/"
    )
    assert len(list_commit_titles(hub, finished_run)) == 1


# --- releases --------------------------------------------------------------------------------------------------------


def test_releases_of_long_run_are_tagged_commits_in_order(hub: Hub, run: Run, node: Node) -> None:
    lease_job(run.job, node)
    first, second = (publish_release(run, create_checkpoint(run.job, step), f"{step}-percent") for step in (10, 20))
    outbox.process_message(OutboxMessage.objects.get(key=publications.get_message_key(second)).pk)
    assert not hub.repositories  # the earlier release is published first
    process_outbox_now()
    process_outbox_now()
    repository = get_repository(hub, run)
    assert list_commit_titles(hub, run) == [f"Run {run.pk}: 10-percent, step 10", f"Run {run.pk}: 20-percent, step 20"]
    assert repository.tags == {"10-percent": repository.commits[1].id, "20-percent": repository.commits[2].id}
    steps = [name for name in repository.head.files if "checkpoints" in name]
    assert steps == ["dailytrain/checkpoints/step-00000020/model.safetensors"]
    assert "The weights at step 10 (10-percent)" in repository.commits[1].files["README.md"].decode()
    first.refresh_from_db()
    assert publications.get_hub_url(first).endswith("/tree/10-percent")

    Publication.objects.filter(pk=first.pk).update(published_at=None, commit="")
    outbox.enqueue("hub", publications.get_message_key(first), {"publication": first.pk})
    process_outbox_now()
    assert len(list_commit_titles(hub, run)) == 2, "main stays at the newest release"


def test_long_upload_renews_its_claim(transactional_db: None) -> None:
    message = OutboxMessage.objects.create(
        kind="hub", key="hub.run:1", state=OutboxMessage.State.CLAIMED, claimed_until=timezone.now()
    )
    with outbox.renew_claim(message, timedelta(seconds=0.02)):
        deadline = time.monotonic() + WAIT_SECONDS
        while not OutboxMessage.objects.filter(pk=message.pk, claimed_until__gt=timezone.now()).exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    outbox.finish_message(message, OutboxMessage.State.DONE)
    message.refresh_from_db()
    assert message.state == OutboxMessage.State.DONE


@pytest.fixture
def notebook_run(run: Run) -> Run:
    """A finished notebook run whose only part left a model."""
    assert run.job
    part = {"path": "notebooks/n.ipynb", "sha256": "a" * 64, "size": 2}
    Entry.objects.filter(pk=run.entry_id).update(kind=Entry.Kind.NOTEBOOK, notebooks=[part])
    Run.objects.filter(pk=run.pk).update(state=Run.State.FINISHED)
    NotebookPart.objects.create(run=run, number=1, job=run.job)
    for path, content in (("model/weights.bin", b"w1"), ("model/a/vocab.txt", b"v"), ("executed.ipynb", b"{}")):
        JobFile.objects.create(job=run.job, path=path, blob=storage.store_bytes(content))
    return Run.objects.select_related("entry__bundle", "track", "season").get(pk=run.pk)


def test_notebook_model_is_published_on_the_hub(hub: Hub, notebook_run: Run, client: Client) -> None:
    assert publications.is_publishable(notebook_run)
    publications.publish_run(notebook_run, "Asked.")
    process_outbox_now()
    message = OutboxMessage.objects.get(key=f"hub.run:{notebook_run.pk}")
    assert (message.state, message.problem) == (OutboxMessage.State.DONE, "")
    files = next(iter(hub.repositories.values())).head.files
    assert files["dailytrain/model/weights.bin"] == b"w1"
    assert files["dailytrain/model/a/vocab.txt"] == b"v"
    assert not [name for name in files if "executed" in name or "checkpoints" in name]
    card = files["README.md"].decode()
    assert "the files that the notebook left" in card
    assert "dailytrain sample" not in card
    publication = Publication.objects.get()
    assert publication.blobs.count() == 2
    page = client.get(notebook_run.get_absolute_url()).content.decode()
    assert publications.get_hub_url(publication) in page
