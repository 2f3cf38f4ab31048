"""A notebook from its commit to its page: vetted by its bytes, part after part, what it leaves handed on."""

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
from scheduler import storage, transitions
from scheduler.job_kinds import get_job_kind, summarize_jobs
from scheduler.models import Event, Job, JobFile, LogChunk, Node
from tests.leaderboard.conftest import Repository, hand_back, lease
from trainer import protocol


def notebook(source: str = "1 + 1", **fields: Any) -> bytes:
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": [], "source": source, **fields}
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [cell]}).encode()


@pytest.fixture
def community(track: Track) -> Track:
    Track.objects.filter(pk=track.pk).update(kind="community", nightly=False, budget="2h", expected_seconds=7200)
    return Track.objects.select_related("season").get(pk=track.pk)


@pytest.fixture
def sorbian(main: Repository, community: Track) -> Entry:
    """A proposed notebook in two parts."""
    main.git("checkout", "--quiet", "-b", "sorbian")
    parts: dict[str, str | bytes] = {f"notebooks/sorbian-part{n}.ipynb": notebook(f"print({n})") for n in (1, 2)}
    main.commit("A small model of Sorbian", parts)
    return intake.submit_entry(str(main.path), "sorbian", "Sorbian", "", community, author="jan")


@pytest.fixture
def begun(sorbian: Entry, maintainer: User) -> Run:
    (run,) = intake.approve_entry(sorbian, sorbian.sha, maintainer)
    return Run.objects.select_related("job", "entry").get(pk=run.pk)


def job_of(run: Run) -> Job:
    run.refresh_from_db()
    job = Job.objects.get(pk=run.job_id)
    assert isinstance(job, Job)
    return job


def end(job: Job, node: Node, files: dict[str, bytes]) -> None:
    """Run a part on a node, which leaves these files."""
    lease(job, node)
    for path, content in files.items():
        JobFile.objects.create(job=job, path=path, blob=storage.store_bytes(content))
    result = protocol.NotebookResult(
        cells=1, seconds=12, left=sum(path.startswith("model/") for path in files)
    ).model_dump()
    assert transitions.finish_job(job, f"node:{node.name}", result)


def test_a_commit_that_brings_notebooks_is_a_notebook_entry(sorbian: Entry) -> None:
    assert (sorbian.kind, sorbian.architecture, sorbian.state) == ("notebook", "sorbian", "proposed")
    assert [part["path"] for part in sorbian.notebooks] == [f"notebooks/sorbian-part{n}.ipynb" for n in (1, 2)]
    assert sorbian.notebooks[0]["sha256"] == hashlib.sha256(notebook("print(1)")).hexdigest()


def test_a_changed_byte_is_another_entry_that_nobody_approved(main: Repository, sorbian: Entry, begun: Run) -> None:
    main.commit("One more", {"notebooks/sorbian-part2.ipynb": notebook("print(3)")})
    after = intake.submit_entry(str(main.path), "sorbian", "Sorbian", "", sorbian.track)
    assert (after.state, after.bundle_id == sorbian.bundle_id) == ("proposed", False)
    spec = get_job_kind(job_of(begun)).build_order(job_of(begun), None)
    assert isinstance(spec, protocol.NotebookOrder)
    assert spec.notebook.model_dump() == sorbian.notebooks[0]


def test_what_changes_an_architecture_too_is_an_open_entry(main: Repository, community: Track) -> None:
    main.git("checkout", "--quiet", "-b", "both")
    main.commit("Both", {"notebooks/n.ipynb": notebook(), "trainer/models/gpt.py": "x = 1\n"})
    assert intake.submit_entry(str(main.path), "both", "Both", "", community).kind == "open"


def test_notebooks_run_where_nothing_is_compared(main: Repository, sorbian: Entry) -> None:
    Track.objects.update(kind="competition")
    sorbian.track.refresh_from_db()
    with pytest.raises(IntakeError, match="Notebooks run on community and playground tracks; Small compares"):
        intake.submit_entry(str(main.path), "sorbian", "Sorbian", "", sorbian.track)


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (["notebooks/a-part2.ipynb"], "numbered 2: number them from 1 without gaps"),
        (["notebooks/a-part1.ipynb", "notebooks/a-part3.ipynb"], "numbered 1, 3"),
        (["notebooks/a.ipynb", "notebooks/a-part1.ipynb"], "rename one of them"),
    ],
)
def test_parts_are_numbered_from_one_on(paths: list[str], problem: str) -> None:
    with pytest.raises(NotebookError, match=problem):
        notebook_series.order_parts(paths, "a")


def test_parts_come_by_number_not_by_name() -> None:
    paths = [f"notebooks/a-part{n}.ipynb" for n in range(1, 12)]
    assert notebook_series.order_parts(reversed(paths), "a") == paths
    assert notebook_series.find_series_names([*paths, "notebooks/../x.ipynb", "notebooks/b.ipynb", "b.ipynb"]) == [
        "a",
        "b",
    ]


def test_what_is_no_notebook_is_refused_by_name(main: Repository, community: Track) -> None:
    main.git("checkout", "--quiet", "-b", "bad")
    main.commit("Bad", {"notebooks/a.ipynb": "print(1)\n", "notebooks/b.ipynb": notebook()})
    with pytest.raises(IntakeError, match=r"the notebooks a and b\. Choose one of them"):
        intake.submit_entry(str(main.path), "bad", "Bad", "", community)
    with pytest.raises(IntakeError, match=r"notebooks/a\.ipynb: The notebook is not valid JSON"):
        intake.submit_entry(str(main.path), "bad", "Bad", "a", community)
    assert intake.submit_entry(str(main.path), "bad", "Bad", "b", community).architecture == "b"


def test_a_coordinator_vets_it_cell_by_cell(client: Client, sorbian: Entry) -> None:
    cora = User.objects.create_user("cora")
    permissions.grant_role(cora, permissions.COORDINATOR, None)
    client.force_login(cora, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get(f"/admin/leaderboard/entry/{sorbian.pk}/change/").content.decode()
    assert "<code>print(2)</code>" in page
    client.post(f"/admin/leaderboard/entry/{sorbian.pk}/approve/", {"sha": sorbian.sha, "budget": "30m"})
    run = sorbian.runs.get()
    assert (run.state, run.budget) == ("queued", "1800s")
    assert job_of(run).kind == "notebook"


def test_parts_run_one_after_the_other_and_hand_on_their_model(begun: Run, node: Node) -> None:
    first = job_of(begun)
    assert (first.kind, first.needs_sandbox, first.entry_id) == ("notebook", True, begun.entry.bundle_id)
    end(first, node, {"executed.ipynb": notebook(), "model/weights.bin": b"w1", "model/tokenizer/vocab.txt": b"v"})
    begun.refresh_from_db()
    assert (begun.state, begun.fraction) == ("queued", 0.5)
    second = job_of(begun)
    assert second != first
    order = get_job_kind(second).build_order(second, None)
    assert isinstance(order, protocol.NotebookOrder)
    assert (order.part, order.parts, order.seconds) == (2, 2, 7200)
    assert order.notebook.path == "notebooks/sorbian-part2.ipynb"
    assert [file.path for file in order.model] == ["tokenizer/vocab.txt", "weights.bin"]
    assert order.dataset is not None
    end(second, node, {"executed.ipynb": notebook(), "model/weights.bin": b"w2"})
    begun.refresh_from_db()
    assert (begun.state, begun.bits_per_byte, begun.score_job) == ("finished", None, None)
    assert [summarize_jobs([job])[job.pk].title for job in (first, second)] == [
        "Notebook Sorbian, part 1 of 2",
        "Notebook Sorbian, part 2 of 2",
    ]
    assert Event.objects.about(begun).order_by("-pk")[0].sentence == (
        f"The notebook has run to its last cell, in {duration(12)}; it left 1 file in model/."
    )


def test_a_lost_part_starts_again_with_the_same_model(begun: Run, node: Node) -> None:
    end(job_of(begun), node, {"model/a": b"1"})
    second = job_of(begun)
    hand_back(lease(second, node))
    begun.refresh_from_db()
    assert (begun.state, begun.job_id) == ("paused", second.pk)
    assert "Part 2 of 2 starts over as soon as a node is free." in begun.reason
    lease(second, node)
    begun.refresh_from_db()
    order = get_job_kind(second).build_order(second, None)
    assert isinstance(order, protocol.NotebookOrder)
    assert (begun.state, [file.path for file in order.model]) == ("training", ["a"])


def test_a_notebook_that_breaks_ends_its_run_and_keeps_what_it_said(client: Client, begun: Run, node: Node) -> None:
    job = job_of(begun)
    lease(job, node)
    trace = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["ValueError: no <b>"]}
    JobFile.objects.create(job=job, path="executed.ipynb", blob=storage.store_bytes(notebook("f()", outputs=[trace])))
    assert transitions.fail_job(job, f"node:{node.name}", "model", "Cell 1 failed: ValueError: no")
    begun.refresh_from_db()
    assert (begun.state, begun.cause, Job.objects.count()) == ("failed", "model", 1)
    page = client.get(begun.get_absolute_url()).content.decode()
    assert "ValueError: no &lt;b&gt;" in page
    assert "notebooks/sorbian-part2.ipynb</code> did not run." in page


def test_cancelling_ends_the_part_that_waits(begun: Run, node: Node, maintainer: User) -> None:
    from leaderboard import runs

    end(job_of(begun), node, {})
    begun.refresh_from_db()
    runs.cancel_run(begun, "Enough.", "mara")
    begun.refresh_from_db()
    assert (begun.state, job_of(begun).state) == ("cancelled", "cancelled")


def test_an_answer_that_cannot_be_right_ends_the_run_as_the_nodes_fault(begun: Run, node: Node) -> None:
    job = job_of(begun)
    lease(job, node)
    assert transitions.finish_job(job, f"node:{node.name}", {"cells": -1})
    begun.refresh_from_db()
    assert (begun.state, begun.cause) == ("failed", "infrastructure")


def test_the_page_shows_the_notebook_and_offers_what_it_left(client: Client, begun: Run, node: Node) -> None:
    assert "appears here" in client.get(begun.get_absolute_url()).content.decode()
    out = {"output_type": "display_data", "data": {"text/html": "<script>alert(1)</script>"}, "metadata": {}}
    files = {"executed.ipynb": notebook("show()", outputs=[out]), "model/my weights.html": b"<script>x</script>"}
    end(job_of(begun), node, files)
    page = client.get(begun.get_absolute_url()).content.decode()
    assert "<code>show()</code>" in page
    assert "<script>alert" not in page
    answer = client.get(f"/runs/{begun.pk}/parts/1/model/my%20weights.html")
    assert f'href="/runs/{begun.pk}/parts/1/model/my%20weights.html"' in page
    assert b"".join(answer) == b"<script>x</script>"  # type: ignore[arg-type]
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    for other in ("/1/run.json", "/2/executed.ipynb", "/1/model/../executed.ipynb"):
        assert client.get(f"/runs/{begun.pk}/parts{other}").status_code == 404


def test_notebook_page_has_revision_of_its_live_json(client: Client, begun: Run) -> None:
    revision = client.get(f"/runs/{begun.pk}/live.json").json()["revision"]
    assert f'data-revision="{revision}"' in client.get(begun.get_absolute_url()).content.decode()


def test_files_of_a_training_are_not_offered_this_way(client: Client, run: Run) -> None:
    assert run.job
    JobFile.objects.create(job=run.job, path="run.json", blob=storage.store_bytes(b"{}"))
    assert client.get(f"/runs/{run.pk}/parts/1/run.json").status_code == 404


def test_entry_and_run_pages_open_before_anything_ran(client: Client, sorbian: Entry) -> None:
    assert client.get(sorbian.get_absolute_url()).status_code == 200


def test_a_page_that_is_open_follows_the_notebook(client: Client, begun: Run, node: Node) -> None:
    page = client.get(begun.get_absolute_url()).content.decode()
    assert f'data-live="/runs/{begun.pk}/live.json"' in page
    held = lease(job_of(begun), node)
    LogChunk.objects.create(lease=held, offset=0, text="cell 1 of 1\n")

    told = client.get(f"/runs/{begun.pk}/live.json").json()

    assert "running" in told["parts"]["head"] or "boarding" in told["parts"]["head"]
    assert "cell 1 of 1" in told["parts"]["log"]
    assert "curve" not in told
    assert told["wait"] > 0
