"""From a finished run to a repository on the Hub: which runs, what is in it, and each exactly once."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import requests
import yaml
from django.contrib.auth.models import User
from django.core.checks import Warning
from django.test import Client
from django.utils import timezone

from leaderboard import actions, events, outbox
from leaderboard.models import OutboxMessage, Publication, Run
from leaderboard.publishing import publications
from leaderboard.rankings import trust
from leaderboard.runs import RunError
from scheduler import retention, storage
from scheduler.models import Checkpoint, Event, JobFile, Node
from tests.leaderboard.conftest import finish, lease, upload
from tests.support import hub_server
from tests.support.graph_jobs import leave_graph, store_graph
from tests.support.hub_server import Hub, Repository
from trainer.protocol import GRAPH_FILES


@pytest.fixture
def hub(settings: Any, tmp_path: Any) -> Iterator[Hub]:
    with hub_server.running() as server:
        settings.HUB_ENDPOINT, settings.HUB_ORGANISATION = server.url, hub_server.ORGANISATION
        settings.HF_TOKEN = hub_server.TOKEN
        settings.HUB_PUBLISH = ["record", "nightly"]
        settings.HOME = tmp_path
        yield server


@pytest.fixture
def finished(run: Run, node: Node) -> Run:
    done = finish(run, node)
    JobFile.objects.create(job_id=done.score_job_id, path="tokenizer.json", blob=storage.store_bytes(b'{"model": {}}'))
    return done


def due() -> None:
    """Whatever was put off is due now."""
    OutboxMessage.objects.update(not_before=timezone.now())
    outbox.process_due()


def of(hub: Hub, run: Run) -> Repository:
    return hub.repositories[f"trains/smear-run-{run.pk}"]


def ours(hub: Hub, run: Run) -> list[str]:
    return [commit.title for commit in of(hub, run).commits[1:]]


def test_a_maintainer_has_a_run_published(hub: Hub, finished: Run, maintainer: User) -> None:
    finished = Run.objects.select_related("entry", "track", "job", "checkpoint").get(pk=finished.pk)
    assert actions.perform_run_action(finished, "publish", maintainer, is_maintainer=True) == (
        "The upload to the Hub is queued."
    )
    due()
    effect = OutboxMessage.objects.get(key=f"hub.run:{finished.pk}")
    assert (effect.state, effect.problem) == (OutboxMessage.State.DONE, "")
    commit = of(hub, finished).head
    assert ours(hub, finished) == [f"Run {finished.pk}: final weights, step 20"]
    step = "dailytrain/checkpoints/step-00000020"
    assert {name for name in commit.files if name.startswith("dailytrain/")} == {
        f"{step}/model.safetensors",
        "dailytrain/run.json",
        "dailytrain/source.tar",
        "dailytrain/tokenizer.json",
    }
    assert commit.files[f"{step}/model.safetensors"] == b"weights at 20"
    assert commit.files["curve.png"].startswith(b"\x89PNG")
    assert b"train,10," in commit.files["curve.csv"]
    kept = Publication.objects.get()
    assert (kept.repository, kept.commit) == (f"trains/smear-run-{finished.pk}", commit.id)
    assert publications.get_hub_url(kept) == f"{hub.url}/trains/smear-run-{finished.pk}"
    assert Event.objects.about(finished).filter(sentence=f"Published as {kept.repository} on the Hub.").count() == 1


def test_repository_of_a_traced_run_has_the_graph_beside_the_weights(hub: Hub, finished: Run, maintainer: User) -> None:
    graph = store_graph(finished.entry)
    leave_graph(graph.job)
    Run.objects.filter(pk=finished.pk).update(graph=graph)
    finished = Run.objects.select_related("entry", "track", "job", "checkpoint").get(pk=finished.pk)
    actions.perform_run_action(finished, "publish", maintainer, is_maintainer=True)
    due()
    files = of(hub, finished).head.files
    assert "dailytrain/checkpoints/step-00000020/model.safetensors" in files
    stored = dict(JobFile.objects.filter(job=graph.job).values_list("path", "blob"))
    assert set(stored) == {f"graph/{name}" for name in GRAPH_FILES}
    assert {path: hashlib.sha256(files[f"dailytrain/{path}"]).hexdigest() for path in stored} == stored


def test_its_card_says_how_good_where_from_and_how_to_load_it(hub: Hub, finished: Run) -> None:
    publications.publish_run(finished, "Somebody asked.")
    due()
    files = of(hub, finished).head.files
    _, head, card = files["README.md"].decode().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert (metadata["license"], metadata["library_name"]) == ("apache-2.0", "dailytrain")
    metrics = [
        (r["dataset"]["type"], m["type"], m["value"])
        for r in metadata["model-index"][0]["results"]
        for m in r["metrics"]
    ]
    assert metrics == [("python-library", "bits_per_byte", 2.5), ("blimp", "acc", 0.55)]
    assert card.lstrip().startswith("# Smeared keys\n")
    for sentence in (
        f"[run {finished.pk}](http://127.0.0.1:8000/runs/{finished.pk}/)",
        "| bits per byte, held-out text | 2.5000 | 0.0100 |",
        f"`{finished.entry.sha}`",
        f"| Seed | {finished.seed} |",
        "d" * 64,
        f"hf download trains/smear-run-{finished.pk} --include 'dailytrain/*'",
        "A trusted node scored it",
        "Somebody asked.",
    ):
        assert sentence in card, sentence
    assert str(storage.settings.MAIN_REPOSITORY) not in card  # a folder of the server stays there
    told = json.loads(files["results.json"])
    assert told["run"]["id"] == finished.pk
    assert told["scores"][0]["name"]


def test_what_a_stranger_wrote_stays_text_on_the_card(hub: Hub, finished: Run) -> None:
    entry = finished.entry
    entry.title, entry.hypothesis = "[x](javascript:1) | <img src=x>", "---\nlicense: mit\n# Big"
    entry.architecture, entry.author = "a`b", "@everyone"
    entry.save()
    publications.publish_run(finished, "Asked.")
    due()
    (repository,) = hub.repositories.values()
    head, card = repository.head.files["README.md"].decode().split("---\n", 2)[1:]
    assert yaml.safe_load(head)["license"] == "apache-2.0"
    assert not re.search(r"(?<!\\)\]\(javascript|(?<!\\)<img|^# Big|@everyone|a`b", card, re.MULTILINE)


def test_records_and_nightly_trains_are_published_by_themselves_and_others_are_not(hub: Hub, finished: Run) -> None:
    events.announce_events()
    assert not Publication.objects.exists()
    trust.transition_trust(finished, Run.Trust.RECORD, actor="site", sentence="A record.")
    events.announce_events()
    due()
    assert Publication.objects.get().reason == "It holds a record."
    assert ours(hub, finished) == [f"Run {finished.pk}: final weights, step 20"]


def test_a_nightly_train_is_published_when_it_arrives(hub: Hub, run: Run, node: Node) -> None:
    Run.objects.filter(pk=run.pk).update(purpose=Run.Purpose.NIGHTLY)
    events.announce_events()
    assert not Publication.objects.exists()
    finish(run, node)
    events.announce_events()
    due()
    assert Publication.objects.get().reason == "It is a nightly train of main."
    assert of(hub, run).head.files["README.md"]


def test_the_card_follows_the_trust_and_the_weights_are_not_sent_again(hub: Hub, finished: Run) -> None:
    publications.publish_run(finished, "Asked.")
    due()
    events.announce_events()
    due()
    sent = hub.sent_bytes
    assert len(ours(hub, finished)) == 1  # what publishing itself says of the run starts nothing
    trust.transition_trust(finished, Run.Trust.DISPUTED, actor="site", sentence="A replay contradicts it.")
    events.announce_events()
    due()
    assert len(ours(hub, finished)) == 2
    assert b"contradicts it" in of(hub, finished).head.files["README.md"]
    assert "dailytrain/source.tar" in of(hub, finished).head.files
    assert hub.sent_bytes - sent < len(of(hub, finished).head.files["curve.png"]) + 1
    events.announce_events()
    due()
    assert len(ours(hub, finished)) == 2


# --- going wrong ------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As a process that is killed: nothing gets to tidy up."""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_publish_killed_at_any_request_goes_on_and_commits_once(
    hub: Hub, finished: Run, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Attempt by attempt it dies one request later: before that is sent, or before its answer is heard."""
    send = requests.Session.send
    left = 0

    def dying(session: Any, request: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0 and moment == "before":
            raise Killed
        answer = send(session, request, **options)
        if left < 0:
            raise Killed
        return answer

    publications.publish_run(finished, "Asked.")
    effect = OutboxMessage.objects.get(key=f"hub.run:{finished.pk}")
    deaths = 0
    for left in range(40):  # noqa: B007
        OutboxMessage.objects.update(not_before=timezone.now(), claimed_until=timezone.now() - timedelta(minutes=1))
        with monkeypatch.context() as patched:
            patched.setattr(requests.Session, "send", dying)
            try:
                outbox.process_message(effect.pk)
            except Killed:
                deaths += 1
                continue
        break
    effect.refresh_from_db()
    assert deaths > 5
    assert (effect.state, effect.problem) == (OutboxMessage.State.DONE, "")
    assert ours(hub, finished) == [f"Run {finished.pk}: final weights, step 20"]
    puts = [asked for method, asked, status in hub.asked if method == "PUT" and status == 200]
    assert len(puts) == len(set(puts)) > 1  # no file was sent twice
    assert Event.objects.about(finished).filter(sentence__startswith="Published").count() == 1


def test_an_upload_that_breaks_goes_on_with_what_is_missing(hub: Hub, finished: Run) -> None:
    """In parts, and with an address that has expired when the last of them has arrived."""
    hub.part_bytes = 10_000
    hub.fail("POST", r"/storage/", 403)
    publications.publish_run(finished, "Asked.")
    due()
    effect = OutboxMessage.objects.get(kind="hub")
    assert effect.state == OutboxMessage.State.PENDING
    assert effect.problem == "A file upload failed: the Hub's storage answered 403."
    assert ours(hub, finished) == []
    arrived = set(of(hub, finished).objects)
    assert arrived
    due()
    assert ours(hub, finished) == [f"Run {finished.pk}: final weights, step 20"]
    again = [path for method, path, status in hub.asked if method == "PUT" and path.rpartition("/")[2] in arrived]
    assert len(again) == len(set(again))
    assert of(hub, finished).head.files["curve.png"].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/api/repos/create", 401, "rejected the token"),
        ("/api/repos/create", 422, "rejected the upload: name is taken"),
        ("/api/models/.*/commits/", 404, "has no repository trains/smear-run-"),
        ("/api/models/.*/commit/", 403, "Permission denied by the Hub"),
        ("/api/models/.*/commit/", 422, "rejected the upload"),
    ],
)
def test_what_the_hub_refuses_is_a_sentence_for_the_operator(
    hub: Hub, finished: Run, path: str, status: int, sentence: str
) -> None:
    hub.fail("POST" if "commits" not in path else "GET", path, status, times=9, message="name is taken")
    publications.publish_run(finished, "Asked.")
    due()
    effect = OutboxMessage.objects.get(kind="hub")
    assert effect.state == OutboxMessage.State.FAILED
    assert sentence in effect.problem
    assert hub_server.TOKEN not in effect.problem


@pytest.mark.parametrize("status", [429, 412, 409, 502, 500])
def test_what_passes_is_tried_again_and_not_before_the_hub_says(hub: Hub, finished: Run, status: int) -> None:
    hub.fail("POST", "/api/models/.*/commit/", status, Retry_After="300")
    publications.publish_run(finished, "Asked.")
    due()
    effect = OutboxMessage.objects.get(kind="hub")
    assert effect.state == OutboxMessage.State.PENDING
    assert f"answered {status}" in effect.problem
    assert timedelta(minutes=4) < effect.not_before - timezone.now() < timedelta(minutes=6)
    due()
    assert len(ours(hub, finished)) == 1


def test_a_hub_that_is_down_costs_nothing_but_time(hub: Hub, finished: Run, settings: Any) -> None:
    settings.HUB_ENDPOINT = "http://127.0.0.1:9"
    publications.publish_run(finished, "Asked.")
    due()
    effect = OutboxMessage.objects.get(kind="hub")
    assert effect.state == OutboxMessage.State.PENDING
    assert effect.problem == "The Hub cannot be reached (ConnectionError)."
    settings.HUB_ENDPOINT = hub.url
    due()
    assert len(ours(hub, finished)) == 1


def test_another_commit_in_between_is_not_overwritten_blindly(hub: Hub, finished: Run) -> None:
    """Two workers at once, or a person on the Hub: the parent has changed, so it is looked at anew."""

    def somebody(method: str, path: str) -> None:
        if path.endswith("/commit/main"):
            hub.before = lambda method, path: None
            of(hub, finished).add("A typo", "", dict(of(hub, finished).head.files))

    hub.before = somebody
    publications.publish_run(finished, "Asked.")
    due()
    assert "answered 412" in OutboxMessage.objects.get(kind="hub").problem
    due()
    assert ours(hub, finished) == ["A typo", f"Run {finished.pk}: final weights, step 20"]


def test_a_repository_of_another_site_is_left_alone(hub: Hub, finished: Run, settings: Any) -> None:
    publications.publish_run(finished, "Asked.")
    due()
    settings.SITE_URL = "https://other.example"
    effect = OutboxMessage.objects.get(kind="hub")
    outbox.enqueue(effect.kind, effect.key, effect.payload)
    due()
    effect.refresh_from_db()
    assert effect.state == OutboxMessage.State.FAILED
    assert effect.problem.startswith(f"trains/smear-run-{finished.pk} holds what came from http://127.0.0.1:8000/runs/")
    assert len(ours(hub, finished)) == 1


# --- releases ---------------------------------------------------------------------------------------------------------


def test_releases_of_a_long_run_are_commits_with_tags_in_order(hub: Hub, run: Run, node: Node) -> None:
    assert run.job
    lease(run.job, node)
    first, second = (publications.publish_release(run, upload(run.job, step), f"{step}-percent") for step in (10, 20))
    outbox.process_message(OutboxMessage.objects.get(key=publications.get_message_key(second)).pk)
    assert not hub.repositories  # the earlier one goes first
    due()
    due()
    repository = of(hub, run)
    assert ours(hub, run) == [f"Run {run.pk}: 10-percent, step 10", f"Run {run.pk}: 20-percent, step 20"]
    assert repository.tags == {"10-percent": repository.commits[1].id, "20-percent": repository.commits[2].id}
    steps = [name for name in repository.head.files if "checkpoints" in name]
    assert steps == ["dailytrain/checkpoints/step-00000020/model.safetensors"]
    assert "The weights at step 10 (10-percent)" in repository.commits[1].files["README.md"].decode()
    first.refresh_from_db()
    assert publications.get_hub_url(first).endswith("/tree/10-percent")

    outbox.enqueue("hub", publications.get_message_key(first), {"publication": first.pk})
    due()
    assert len(ours(hub, run)) == 2  # main does not go back


def test_a_release_outlives_its_checkpoint(site: Any, run: Run, node: Node, client: Client) -> None:
    assert run.job
    lease(run.job, node)
    checkpoint = upload(run.job, 10)
    optimizer = storage.store_bytes(b"momenta")
    checkpoint.manifest["files"].append(storage.build_file_reference(optimizer, "optimizer.pt").model_dump())
    checkpoint.save()
    checkpoint.blobs.add(optimizer)
    publications.publish_release(run, checkpoint, "10-percent")
    assert publications.publish_release(run, checkpoint, "10-percent") == Publication.objects.get()
    upload(run.job, 20)
    run.job.state, run.job.finished_at = "done", timezone.now() - timedelta(days=9)
    run.job.save()
    storage.Blob.objects.update(created_at=timezone.now() - timedelta(days=9))
    retention.delete_expired()
    assert not Checkpoint.objects.filter(pk=checkpoint.pk).exists()
    assert not storage.Blob.objects.filter(pk=optimizer.pk).exists()
    answer = client.get(f"/runs/{run.pk}/weights/10-percent/checkpoints/step-00000010/model.safetensors")
    assert b"".join(answer) == b"weights at 10"


def test_without_a_hub_weights_are_kept_and_nothing_is_sent(site: Any, finished: Run, maintainer: User) -> None:
    assert not publications.is_connected()
    offered = actions.list_run_actions(maintainer, finished, is_maintainer=True)
    assert "publish" not in [action.name for action in offered]
    publications.publish_run(finished, "Asked.")
    assert Publication.objects.get().published_at is None
    assert not OutboxMessage.objects.filter(kind="hub").exists()


def test_a_run_without_final_weights_is_not_published(hub: Hub, run: Run) -> None:
    with pytest.raises(RunError, match="there are no final weights to publish"):
        publications.publish_run(run, "Asked.")


def test_only_maintainers_publish(hub: Hub, finished: Run) -> None:
    author = User.objects.create_user("ada")
    finished.entry.requested_by = author
    assert "publish" not in [action.name for action in actions.list_run_actions(author, finished, is_maintainer=False)]


def test_half_a_configuration_shows_up_in_the_check(settings: Any) -> None:
    settings.HUB_ORGANISATION, settings.HF_TOKEN = "trains", ""
    (said,) = publications.check_hub_settings(None)
    assert isinstance(said, Warning)
    assert said.msg == "HUB_ORGANISATION is set and HF_TOKEN is not: nothing is published."


def test_a_long_upload_keeps_its_claim(transactional_db: None) -> None:
    import time

    effect = OutboxMessage.objects.create(
        kind="hub", key="hub.run:1", state=OutboxMessage.State.CLAIMED, claimed_until=timezone.now()
    )
    with outbox.renew_claim(effect, timedelta(seconds=0.02)):
        deadline = time.monotonic() + 20
        while not OutboxMessage.objects.filter(pk=effect.pk, claimed_until__gt=timezone.now()).exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    outbox.finish_message(effect, OutboxMessage.State.DONE)
    effect.refresh_from_db()
    assert effect.state == OutboxMessage.State.DONE
