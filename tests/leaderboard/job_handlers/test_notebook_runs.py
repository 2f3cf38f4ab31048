"""Notebook runs: submission, approval by content, parts in order, files passed between parts, pages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.test import Client

from leaderboard import permissions
from leaderboard.formatting import duration
from leaderboard.models import Entry, Run, Track
from leaderboard.submissions import intake, notebook_series
from leaderboard.submissions.intake import IntakeError
from leaderboard.submissions.notebook_cells import NotebookError
from scheduler import rate_limits, storage, transitions
from scheduler.job_kinds import get_job_kind, summarize_jobs
from scheduler.models import Event, Job, JobFile, Node
from tests.leaderboard.conftest import Repository
from tests.support.node_jobs import end_lease, lease_job
from trainer import protocol


def build_notebook(source: str = "1 + 1", **fields: Any) -> bytes:
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": source, **fields}
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [cell]}).encode()


@pytest.fixture
def community_track(track: Track) -> Track:
    Track.objects.filter(pk=track.pk).update(kind="community", nightly=False, budget="2h", expected_seconds=7200)
    return Track.objects.select_related("season").get(pk=track.pk)


@pytest.fixture
def notebook_entry(main_repository: Repository, community_track: Track) -> Entry:
    """A proposed notebook in two parts."""
    main_repository.git("checkout", "--quiet", "-b", "sorbian")
    parts: dict[str, str | bytes] = {f"notebooks/sorbian-part{n}.ipynb": build_notebook(f"print({n})") for n in (1, 2)}
    main_repository.commit("A small model of Sorbian", parts)
    return intake.submit_entry(str(main_repository.path), "sorbian", "Sorbian", "", community_track, author="jan")


@pytest.fixture
def notebook_run(notebook_entry: Entry, maintainer: User) -> Run:
    (run,) = intake.approve_entry(notebook_entry, notebook_entry.sha, maintainer)
    return Run.objects.select_related("job", "entry").get(pk=run.pk)


def get_current_job(run: Run) -> Job:
    run.refresh_from_db()
    job = Job.objects.get(pk=run.job_id)
    assert isinstance(job, Job)
    return job


def finish_part(job: Job, node: Node, files: dict[str, bytes]) -> None:
    """Run one part on a node to its end; the part leaves these files."""
    lease = lease_job(job, node)
    for path, content in files.items():
        JobFile.objects.create(job=job, path=path, blob=storage.store_bytes(content))
    result = protocol.NotebookResult(cells=1, seconds=12, left=sum(path.startswith("model/") for path in files))
    end_lease(lease, "done", result=result.model_dump())


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (["notebooks/a-part2.ipynb"], "numbered 2: number them from 1 without gaps"),
        (["notebooks/a-part1.ipynb", "notebooks/a-part3.ipynb"], "numbered 1, 3"),
        (["notebooks/a.ipynb", "notebooks/a-part1.ipynb"], "rename one of them"),
    ],
)
def test_notebook_parts_with_wrong_numbers_are_refused(paths: list[str], problem: str) -> None:
    with pytest.raises(NotebookError, match=problem):
        notebook_series.order_parts(paths, "a")


def test_invalid_notebook_is_refused_with_its_path(main_repository: Repository, community_track: Track) -> None:
    main_repository.git("checkout", "--quiet", "-b", "bad")
    main_repository.commit("Bad", {"notebooks/a.ipynb": "print(1)\n", "notebooks/b.ipynb": build_notebook()})
    with pytest.raises(IntakeError, match=r"the notebooks a and b\. Choose one of them"):
        intake.submit_entry(str(main_repository.path), "bad", "Bad", "", community_track)
    with pytest.raises(IntakeError, match=r"notebooks/a\.ipynb: The notebook is not valid JSON"):
        intake.submit_entry(str(main_repository.path), "bad", "Bad", "a", community_track)
    entry = intake.submit_entry(str(main_repository.path), "bad", "Bad", "b", community_track)
    assert (entry.kind, entry.architecture) == ("notebook", "b")
    main_repository.commit("Both", {"notebooks/a.ipynb": build_notebook(), "trainer/models/gpt.py": "x = 1\n"})
    assert intake.submit_entry(str(main_repository.path), "bad", "Both", "", community_track).kind == "open"
    community_track.kind = Track.Kind.COMPETITION
    with pytest.raises(IntakeError, match="Notebooks run on community and playground tracks; Small compares"):
        intake.submit_entry(str(main_repository.path), entry.sha, "Bad", "b", community_track, variant="x")


def test_notebook_approval_page_shows_cells_to_coordinator(client: Client, notebook_entry: Entry) -> None:
    cora = User.objects.create_user("cora")
    permissions.grant_role(cora, permissions.COORDINATOR, None)
    client.force_login(cora, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get(f"/admin/leaderboard/entry/{notebook_entry.pk}/change/").content.decode()
    assert "<code>print(2)</code>" in page
    client.post(f"/admin/leaderboard/entry/{notebook_entry.pk}/approve/", {"sha": notebook_entry.sha, "budget": "30m"})
    run = notebook_entry.runs.get()
    assert (run.state, run.budget) == ("queued", "1800s")
    assert get_current_job(run).kind == "notebook"


def test_notebook_parts_run_in_order_and_pass_on_model(notebook_run: Run, node: Node) -> None:
    first = get_current_job(notebook_run)
    assert (first.kind, first.needs_sandbox, first.entry_id) == ("notebook", True, notebook_run.entry.bundle_id)
    order = get_job_kind(first).build_order(first, None)
    assert isinstance(order, protocol.NotebookOrder)
    assert order.notebook.model_dump() == notebook_run.entry.notebooks[0], "the approved content"
    finish_part(
        first, node, {"executed.ipynb": build_notebook(), "model/weights.bin": b"w1", "model/tokenizer/vocab.txt": b"v"}
    )
    notebook_run.refresh_from_db()
    assert (notebook_run.state, notebook_run.fraction) == ("queued", 0.5)
    second = get_current_job(notebook_run)
    assert second != first
    order = get_job_kind(second).build_order(second, None)
    assert isinstance(order, protocol.NotebookOrder)
    assert (order.part, order.parts, order.seconds) == (2, 2, 7200)
    assert order.notebook.path == "notebooks/sorbian-part2.ipynb"
    assert [file.path for file in order.model] == ["tokenizer/vocab.txt", "weights.bin"]
    assert order.dataset is not None
    finish_part(second, node, {"executed.ipynb": build_notebook(), "model/weights.bin": b"w2"})
    notebook_run.refresh_from_db()
    assert (notebook_run.state, notebook_run.bits_per_byte, notebook_run.score_job) == ("finished", None, None)
    assert [summarize_jobs([job])[job.pk].title for job in (first, second)] == [
        "Notebook Sorbian, part 1 of 2",
        "Notebook Sorbian, part 2 of 2",
    ]
    assert Event.objects.about(notebook_run).order_by("-pk")[0].sentence == (
        f"The notebook has run to its last cell, in {duration(12)}; it left 1 file in model/."
    )


def test_failed_notebook_ends_run_and_shows_its_output(client: Client, notebook_run: Run, node: Node) -> None:
    job = get_current_job(notebook_run)
    lease_job(job, node)
    trace = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["ValueError: no <b>"]}
    JobFile.objects.create(
        job=job, path="executed.ipynb", blob=storage.store_bytes(build_notebook("f()", outputs=[trace]))
    )
    transitions.fail_job(job, f"node:{node.name}", "model", "Cell 1 failed: ValueError: no")
    notebook_run.refresh_from_db()
    assert (notebook_run.state, notebook_run.cause, Job.objects.count()) == ("failed", "model", 1)
    page = client.get(notebook_run.get_absolute_url()).content.decode()
    assert "ValueError: no &lt;b&gt;" in page
    assert "notebooks/sorbian-part2.ipynb</code> did not run." in page


@pytest.mark.usefixtures("rate_limit_clock")
def test_notebook_page_shows_cells_and_links_files(
    client: Client, notebook_run: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "appears here" in client.get(notebook_run.get_absolute_url()).content.decode()
    output = {"output_type": "display_data", "data": {"text/html": "<script>alert(1)</script>"}, "metadata": {}}
    executed = build_notebook("show()", outputs=[output])
    files = {"executed.ipynb": executed, "model/my weights.html": b"<script>x</script>"}
    finish_part(get_current_job(notebook_run), node, files)
    page = client.get(notebook_run.get_absolute_url()).content.decode()
    assert "<code>show()</code>" in page
    assert "<script>alert" not in page
    response = client.get(f"/runs/{notebook_run.pk}/parts/1/model/my%20weights.html")
    assert f'href="/runs/{notebook_run.pk}/parts/1/model/my%20weights.html"' in page
    assert b"".join(response) == b"<script>x</script>"  # type: ignore[arg-type]
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["Content-Disposition"].startswith("attachment")
    for path in ("/1/run.json", "/2/executed.ipynb", "/1/model/../executed.ipynb"):
        assert client.get(f"/runs/{notebook_run.pk}/parts{path}").status_code == 404
    monkeypatch.setitem(rate_limits.PER_HOUR, "download", 1)
    assert client.get(f"/runs/{notebook_run.pk}/parts/1/executed.ipynb").status_code == 429


@pytest.mark.parametrize(
    "hosts", ["huggingface.co", ["https://huggingface.co"], ["localhost"], ["10.0.0.1"], ["a.b:80"], ["a.org"] * 51]
)
def test_track_refuses_notebook_hosts_that_are_no_list_of_names(track: Track, hosts: object) -> None:
    with pytest.raises(ValidationError, match="Up to 50 names of hosts"):
        Track._meta.get_field("notebook_hosts").clean(hosts, track)


def test_hosts_of_the_track_are_in_the_order_and_shown_at_review(notebook_run: Run, client: Client) -> None:
    page = notebook_run.entry.get_absolute_url()
    order = get_job_kind(notebook_run.job).build_order(notebook_run.job, None)
    assert order.hosts is None
    assert "Runs without network." in client.get(page).content.decode()
    Track.objects.update(notebook_hosts=["huggingface.co", "hf.co"])
    order = get_job_kind(notebook_run.job).build_order(notebook_run.job, None)
    assert order.hosts == ("huggingface.co", "hf.co")
    assert "May fetch by HTTPS from huggingface.co, hf.co" in client.get(page).content.decode()
