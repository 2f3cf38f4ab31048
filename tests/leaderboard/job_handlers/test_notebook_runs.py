"""Notebook runs: submission, approval by content, parts in order, files passed between parts, pages."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from leaderboard import permissions
from leaderboard.formatting import duration
from leaderboard.models import Entry, Run, Track
from leaderboard.submissions import intake, notebook_series
from leaderboard.submissions.intake import IntakeError
from leaderboard.submissions.notebook_cells import NotebookError
from scheduler import rate_limits, storage, transitions
from scheduler.job_kinds import get_job_kind, summarize_jobs
from scheduler.models import Event, Job, JobFile, LogChunk, Node
from tests.leaderboard.conftest import Repository
from tests.support.node_jobs import end_lease, lease_job, requeue_job
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


def test_commit_with_notebooks_is_a_notebook_entry(notebook_entry: Entry) -> None:
    assert (notebook_entry.kind, notebook_entry.architecture, notebook_entry.state) == (
        "notebook",
        "sorbian",
        "proposed",
    )
    assert [part["path"] for part in notebook_entry.notebooks] == [f"notebooks/sorbian-part{n}.ipynb" for n in (1, 2)]
    assert notebook_entry.notebooks[0]["sha256"] == hashlib.sha256(build_notebook("print(1)")).hexdigest()


def test_changed_notebook_is_a_new_unapproved_entry(
    main_repository: Repository, notebook_entry: Entry, notebook_run: Run
) -> None:
    main_repository.commit("One more", {"notebooks/sorbian-part2.ipynb": build_notebook("print(3)")})
    new_entry = intake.submit_entry(str(main_repository.path), "sorbian", "Sorbian", "", notebook_entry.track)
    assert (new_entry.state, new_entry.bundle_id == notebook_entry.bundle_id) == ("proposed", False)
    spec = get_job_kind(get_current_job(notebook_run)).build_order(get_current_job(notebook_run), None)
    assert isinstance(spec, protocol.NotebookOrder)
    assert spec.notebook.model_dump() == notebook_entry.notebooks[0]


def test_commit_with_notebook_and_architecture_is_an_open_entry(
    main_repository: Repository, community_track: Track
) -> None:
    main_repository.git("checkout", "--quiet", "-b", "both")
    main_repository.commit("Both", {"notebooks/n.ipynb": build_notebook(), "trainer/models/gpt.py": "x = 1\n"})
    assert intake.submit_entry(str(main_repository.path), "both", "Both", "", community_track).kind == "open"


def test_notebook_on_competition_track_is_refused(main_repository: Repository, notebook_entry: Entry) -> None:
    Track.objects.update(kind="competition")
    notebook_entry.track.refresh_from_db()
    with pytest.raises(IntakeError, match="Notebooks run on community and playground tracks; Small compares"):
        intake.submit_entry(str(main_repository.path), "sorbian", "Sorbian", "", notebook_entry.track)


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


def test_notebook_parts_are_ordered_by_number() -> None:
    paths = [f"notebooks/a-part{n}.ipynb" for n in range(1, 12)]
    assert notebook_series.order_parts(reversed(paths), "a") == paths
    assert notebook_series.find_series_names([*paths, "notebooks/../x.ipynb", "notebooks/b.ipynb", "b.ipynb"]) == [
        "a",
        "b",
    ]


def test_invalid_notebook_is_refused_with_its_path(main_repository: Repository, community_track: Track) -> None:
    main_repository.git("checkout", "--quiet", "-b", "bad")
    main_repository.commit("Bad", {"notebooks/a.ipynb": "print(1)\n", "notebooks/b.ipynb": build_notebook()})
    with pytest.raises(IntakeError, match=r"the notebooks a and b\. Choose one of them"):
        intake.submit_entry(str(main_repository.path), "bad", "Bad", "", community_track)
    with pytest.raises(IntakeError, match=r"notebooks/a\.ipynb: The notebook is not valid JSON"):
        intake.submit_entry(str(main_repository.path), "bad", "Bad", "a", community_track)
    assert intake.submit_entry(str(main_repository.path), "bad", "Bad", "b", community_track).architecture == "b"


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


def test_lost_notebook_part_restarts_with_the_same_model(notebook_run: Run, node: Node) -> None:
    finish_part(get_current_job(notebook_run), node, {"model/a": b"1"})
    second = get_current_job(notebook_run)
    requeue_job(lease_job(second, node))
    notebook_run.refresh_from_db()
    assert (notebook_run.state, notebook_run.job_id) == ("paused", second.pk)
    assert "Part 2 of 2 starts over as soon as a node is free." in notebook_run.reason
    lease_job(second, node)
    notebook_run.refresh_from_db()
    order = get_job_kind(second).build_order(second, None)
    assert isinstance(order, protocol.NotebookOrder)
    assert (notebook_run.state, [file.path for file in order.model]) == ("training", ["a"])


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


def test_cancelled_notebook_run_cancels_its_queued_part(notebook_run: Run, node: Node, maintainer: User) -> None:
    from leaderboard import runs

    finish_part(get_current_job(notebook_run), node, {})
    notebook_run.refresh_from_db()
    runs.cancel_run(notebook_run, "Enough.", "mara")
    notebook_run.refresh_from_db()
    assert (notebook_run.state, get_current_job(notebook_run).state) == ("cancelled", "cancelled")


def test_invalid_notebook_result_fails_run_as_infrastructure(notebook_run: Run, node: Node) -> None:
    job = get_current_job(notebook_run)
    end_lease(lease_job(job, node), "done", result={"cells": -1})
    notebook_run.refresh_from_db()
    assert (notebook_run.state, notebook_run.cause) == ("failed", "infrastructure")


def test_notebook_page_shows_cells_and_links_files(client: Client, notebook_run: Run, node: Node) -> None:
    assert "appears here" in client.get(notebook_run.get_absolute_url()).content.decode()
    output = {"output_type": "display_data", "data": {"text/html": "<script>alert(1)</script>"}, "metadata": {}}
    files = {
        "executed.ipynb": build_notebook("show()", outputs=[output]),
        "model/my weights.html": b"<script>x</script>",
    }
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


@pytest.mark.usefixtures("rate_limit_clock")
def test_notebook_files_per_address_are_rate_limited(
    client: Client, notebook_run: Run, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rate_limits.PER_HOUR, "download", 2)
    finish_part(get_current_job(notebook_run), node, {"executed.ipynb": build_notebook("show()"), "a.txt": b"text"})
    address = f"/runs/{notebook_run.pk}/parts/1/a.txt"
    statuses = []
    for _ in range(3):
        response = client.get(address)
        list(response)  # reads to the end, which closes the file
        statuses.append(response.status_code)
    assert statuses == [200, 200, 429]


def test_notebook_page_has_revision_of_its_live_json(client: Client, notebook_run: Run) -> None:
    revision = client.get(f"/runs/{notebook_run.pk}/live.json").json()["revision"]
    assert f'data-revision="{revision}"' in client.get(notebook_run.get_absolute_url()).content.decode()


def test_files_of_training_run_are_not_served_as_notebook_parts(client: Client, run: Run) -> None:
    assert run.job
    JobFile.objects.create(job=run.job, path="run.json", blob=storage.store_bytes(b"{}"))
    assert client.get(f"/runs/{run.pk}/parts/1/run.json").status_code == 404


def test_notebook_entry_page_before_any_run_opens(client: Client, notebook_entry: Entry) -> None:
    assert client.get(notebook_entry.get_absolute_url()).status_code == 200


def test_notebook_live_json_has_phase_and_log(client: Client, notebook_run: Run, node: Node) -> None:
    page = client.get(notebook_run.get_absolute_url()).content.decode()
    assert f'data-live="/runs/{notebook_run.pk}/live.json"' in page
    lease = lease_job(get_current_job(notebook_run), node)
    LogChunk.objects.create(lease=lease, offset=0, text="cell 1 of 1\n")

    live = client.get(f"/runs/{notebook_run.pk}/live.json").json()

    assert "running" in live["parts"]["head"] or "boarding" in live["parts"]["head"]
    assert "cell 1 of 1" in live["parts"]["log"]
    assert "curve" not in live
    assert live["wait"] > 0
