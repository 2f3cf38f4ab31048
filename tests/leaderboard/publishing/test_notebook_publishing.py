"""The model that a notebook run left is published on the Hub."""

from __future__ import annotations

import pytest
from django.test import Client

from leaderboard.models import Entry, NotebookPart, OutboxMessage, Publication, Run
from leaderboard.publishing import publications
from leaderboard.run_states import RunError
from scheduler import storage
from scheduler.models import JobFile
from tests.leaderboard.publishing.test_publishing import process_outbox_now
from tests.support.hub_server import Hub

pytestmark = pytest.mark.processes


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


def test_notebook_without_model_is_not_publishable(notebook_run: Run) -> None:
    JobFile.objects.filter(path__startswith="model/").delete()
    assert not publications.is_publishable(notebook_run)
    with pytest.raises(RunError, match="no final weights"):
        publications.publish_run(notebook_run, "Asked.")
