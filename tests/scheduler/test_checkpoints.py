"""Superseded checkpoints: which keep their files, and what counts against the lease's limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.db.models import Sum
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from scheduler import checkpoints, storage
from scheduler.models import Blob, Checkpoint, Job, Lease, Node
from tests.support import scene
from tests.support.pool import (
    Agent,
    ClaimedJob,
    build_file_reference,
    create_node,
    find_blob,
    read_error_detail,
)
from trainer import protocol

pytestmark = pytest.mark.sql

GIB = 1000
"""Bytes that represent a GiB in these tests."""
WEIGHTS, OPTIMIZER = 5160, 7780
"""Sizes for a model with 1.38 billion parameters: 5.16 and 7.78 GiB."""
HUGE_FILE = protocol.FileRef(path="model.safetensors", sha256="a" * 64, size=2**60)
BLOB_MAX, LEASE_MAX = 8 * GIB, 256 * GIB

Upload = Callable[..., None]


@pytest.fixture(autouse=True)
def _limits(settings: Settings) -> None:
    settings.BLOB_MAX_BYTES, settings.LEASE_MAX_BYTES = BLOB_MAX, LEASE_MAX


@pytest.fixture
def upload_checkpoint(django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> Upload:
    """Upload a checkpoint as an agent does, of two files that no other checkpoint has."""

    def upload(claimed_job: ClaimedJob, step: int, weights: int = 20, optimizer: int = 20) -> None:
        files = {
            "model.safetensors": build_weights(step).ljust(weights),
            "optimizer.pt": b"optimizer %d" % step + bytes(optimizer),
        }
        for content in files.values():
            response = claimed_job.upload_blob(content)
            assert response.status_code == 200, f"step {step}: {read_error_detail(response)}"
        with django_capture_on_commit_callbacks(execute=True):
            response = claimed_job.report_checkpoint(
                step, *(build_file_reference(content, path) for path, content in files.items())
            )
        assert response.status_code == 200, f"step {step}: {read_error_detail(response)}"

    return upload


def build_weights(step: int) -> bytes:
    return (b"weights %d" % step).ljust(20)


def list_steps_with_files(claimed_job: ClaimedJob) -> list[int]:
    return list(claimed_job.job.checkpoints.with_files().values_list("step", flat=True))


def set_drawn_stretch(monkeypatch: pytest.MonkeyPatch, *ends: int) -> None:
    """Make the site draw the stretch that ends at one of these steps as evidence."""
    monkeypatch.setattr(checkpoints, "draw_rank", lambda checkpoint: b"0" if checkpoint.step in ends else b"1")


def download_content(claimed_job: ClaimedJob, sha256: str) -> bytes:
    response = claimed_job.download_blob(sha256)
    assert response.status_code == 200
    return b"".join(response.streaming_content)  # type: ignore[attr-defined]


def test_checkpoints_of_a_whole_night_fit_into_the_lease_limit(
    claimed_job: ClaimedJob, upload_checkpoint: Upload
) -> None:
    count, size, release = 21, WEIGHTS + OPTIMIZER, Blob.objects.count()
    assert count * size > LEASE_MAX
    for step in range(1, count + 1):
        upload_checkpoint(claimed_job, step, WEIGHTS, OPTIMIZER - 12)
        counted = Lease.objects.aggregate(total=Sum("uploads__size"))["total"]
        assert counted <= 2 * (size + 20)
        steps = list_steps_with_files(claimed_job)
        assert steps[-2:] == [step - 1, step][-step:]
        assert len(steps) <= 6, "the first, the last two, and the ends of two stretches"
    assert Blob.objects.count() == release + 2 * len(steps)
    assert claimed_job.job.checkpoints.count() == count, "rows with hashes stay"


@pytest.mark.parametrize(("drawn", "kept"), [(4, [1, 2, 3, 4, 7, 8]), (1, [1, 7, 8])])
def test_superseded_checkpoint_of_the_drawn_stretch_keeps_its_files(
    claimed_job: ClaimedJob, upload_checkpoint: Upload, monkeypatch: pytest.MonkeyPatch, drawn: int, kept: list[int]
) -> None:
    set_drawn_stretch(monkeypatch, drawn)
    for step in range(1, 9):
        upload_checkpoint(claimed_job, step)
    assert list_steps_with_files(claimed_job) == kept
    assert bool(find_blob(build_weights(2))) == (drawn == 4)
    assert not find_blob(build_weights(5))
    assert Lease.objects.get().uploads.count() == 4, "files kept as evidence do not count"


def test_job_of_two_nodes_keeps_one_stretch_for_each(claimed_job: ClaimedJob, upload_checkpoint: Upload) -> None:
    for step in range(1, 6):
        upload_checkpoint(claimed_job, step)
    claimed_job.finish("released")
    second = Agent(create_node("second")[1]).claim_job()
    for step in range(6, 12):
        upload_checkpoint(second, step)
    rows = list(claimed_job.job.checkpoints.select_related("lease__node"))
    with_files = set(list_steps_with_files(claimed_job))
    for node in Node.objects.all():
        ends = [row for row in rows if row.lease and row.lease.node == node]
        drawn = min(ends, key=checkpoints.draw_rank).step
        assert {step for step in (drawn - 2, drawn - 1, drawn) if step > 0} <= with_files, node.name
    assert len(with_files) <= 10


def test_drawn_stretch_over_many_jobs_is_uniform(db: None) -> None:
    steps = range(1, 5)
    drawn = Counter(
        min(steps, key=lambda step: checkpoints.draw_rank(Checkpoint(job_id=job, step=step))) for job in range(2000)
    )
    assert all(abs(drawn[step] - 500) < 100 for step in steps), drawn  # five standard deviations


def test_checkpoint_that_a_run_starts_from_keeps_its_files(
    claimed_job: ClaimedJob, upload_checkpoint: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_drawn_stretch(monkeypatch, 1)
    entry = scene.create_entry(scene.create_track(), "An idea", bundle=storage.store_bytes(b"an entry"))
    upload_checkpoint(claimed_job, 1)
    upload_checkpoint(claimed_job, 2)
    start = claimed_job.job.checkpoints.get(step=2)
    run = scene.create_run(entry, start_checkpoint=start)
    for step in range(3, 7):
        upload_checkpoint(claimed_job, step)
    assert list_steps_with_files(claimed_job) == [1, 2, 5, 6]
    run.delete()
    upload_checkpoint(claimed_job, 7)
    assert list_steps_with_files(claimed_job) == [1, 6, 7]


def test_file_shared_with_a_newer_checkpoint_is_kept(claimed_job: ClaimedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    set_drawn_stretch(monkeypatch, 1)
    for step in range(1, 5):
        assert claimed_job.upload_checkpoint(step, b"the same weights").status_code == 200
    assert Lease.objects.get().uploads.count() == 1
    assert claimed_job.report_checkpoint(5, build_file_reference(b"the same weights")).status_code == 200


def test_file_named_by_active_lease_is_not_deleted(
    claimed_job: ClaimedJob, upload_checkpoint: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_drawn_stretch(monkeypatch, 1, 4)
    upload_checkpoint(claimed_job, 1)
    upload_checkpoint(claimed_job, 2)
    claimed_job.finish("released")
    next_job = claimed_job.agent.claim_job()
    for step in range(3, 7):
        upload_checkpoint(next_job, step)
    assert list_steps_with_files(next_job) == [1, 5, 6]
    assert download_content(next_job, build_file_reference(build_weights(2)).sha256) == build_weights(2), (
        "the order of the active lease names the file"
    )


def test_checkpoint_older_than_the_newest_is_refused(claimed_job: ClaimedJob) -> None:
    """It could lie between the ends of a stretch that is kept for a replay."""
    assert claimed_job.upload_checkpoint(10, b"weights 10").status_code == 200
    response = claimed_job.upload_checkpoint(9, b"weights 9")
    assert response.status_code == 422
    assert "too old" in read_error_detail(response)
    assert Job.objects.get().checkpoints.count() == 1


@pytest.mark.parametrize(
    ("limit", "has_code", "state"),
    [
        ("BLOB_MAX_BYTES", False, Job.State.HELD),
        ("LEASE_MAX_BYTES", False, Job.State.HELD),
        ("BLOB_MAX_BYTES", True, Job.State.FAILED),
    ],
)
def test_node_refused_by_a_site_limit_is_not_blamed(
    claimed_job: ClaimedJob, settings: Settings, limit: str, has_code: bool, state: str
) -> None:
    setattr(settings, limit, 10)
    Node.objects.update(trusted=True)
    if has_code:
        Job.objects.update(entry=storage.store_bytes(b"its code"), needs_sandbox=True)
    response = claimed_job.upload_blob(b"a larger file")
    assert response.status_code == 413
    claimed_job.finish("failed", cause="infrastructure", reason=read_error_detail(response))
    job = Job.objects.get()
    assert (job.state, job.cause, job.failures) == (state, "model" if has_code else "", 0)
    assert has_code or "raise it in the track's limits" in job.reason, "the limit holds for other nodes, too"
    assert Node.objects.get().failures == 0


def test_limit_of_site_holds_job_only_if_a_second_owner_meets_it(claimed_job: ClaimedJob, settings: Settings) -> None:
    settings.BLOB_MAX_BYTES = 10
    response = claimed_job.call("/blobs", protocol.BlobQuery(files=(HUGE_FILE,)))
    assert response.status_code == 413
    claimed_job.finish("failed", cause="infrastructure", reason=read_error_detail(response))
    job = Job.objects.get()
    assert (job.state, job.failures, Node.objects.get().failures) == (Job.State.QUEUED, 0, 0)
    second = Agent(create_node("next", owner=User.objects.create_user("bob"))[1]).claim_job()
    response = second.call("/blobs", protocol.BlobQuery(files=(HUGE_FILE,)))
    second.finish("failed", cause="infrastructure", reason=read_error_detail(response))
    job.refresh_from_db()
    assert (job.state, job.failures, job.excluded_nodes) == (Job.State.HELD, 0, [])


def test_limits_of_a_job_replace_those_of_the_settings(claimed_job: ClaimedJob, settings: Settings) -> None:
    settings.BLOB_MAX_BYTES = settings.LEASE_MAX_BYTES = 10
    Job.objects.update(max_file_bytes=100, max_lease_bytes=20)
    assert claimed_job.upload_blob(b"a larger file").status_code == 200
    assert claimed_job.upload_blob(b"and another one").status_code == 413
