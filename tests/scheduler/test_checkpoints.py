"""Superseded checkpoints: which of them keep their files, and what counts against the lease's limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db.models import Sum
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from leaderboard.models import Entry, Run, Season, Track
from scheduler import checkpoints, storage
from scheduler.models import Blob, Checkpoint, Job, Lease, Node
from tests.support.pool import Agent, Work, blob_of, make_job, make_node, reference, sentence
from trainer import protocol

NIGHT = 93
"""Checkpoints of a night of 23.25 hours, one every 15 minutes."""
GIB = 1000
"""Bytes that stand for a GiB here."""
WEIGHTS, OPTIMIZER = 5160, 7780
"""Of the night's model with 1.38 billion parameters: 5.16 and 7.78 GiB."""
HUGE_FILE = protocol.FileRef(path="model.safetensors", sha256="a" * 64, size=2**60)
BLOB_MAX, LEASE_MAX = 8 * GIB, 256 * GIB

Upload = Callable[..., None]


@pytest.fixture(autouse=True)
def _limits(settings: Settings, tmp_path: Path) -> None:
    default = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": str(tmp_path)}}
    settings.STORAGES = {**settings.STORAGES, "default": default}
    settings.BLOB_MAX_BYTES, settings.LEASE_MAX_BYTES = BLOB_MAX, LEASE_MAX


@pytest.fixture
def work(agent: Agent) -> Work:
    make_job()
    return agent.work()


@pytest.fixture
def upload(django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> Upload:
    """Upload a checkpoint as an agent does, of two files that no other checkpoint has."""

    def send(work: Work, step: int, weights: int = 20, optimizer: int = 20) -> None:
        files = {
            "model.safetensors": weights_of(step).ljust(weights),
            "optimizer.pt": b"optimizer %d" % step + bytes(optimizer),
        }
        for content in files.values():
            answer = work.put(content)
            assert answer.status_code == 200, f"step {step}: {sentence(answer)}"
        with django_capture_on_commit_callbacks(execute=True):
            answer = work.uploaded(step, *(reference(content, path) for path, content in files.items()))
        assert answer.status_code == 200, f"step {step}: {sentence(answer)}"

    return send


def weights_of(step: int) -> bytes:
    return (b"weights %d" % step).ljust(20)


def steps_with_files(work: Work) -> list[int]:
    return list(work.job.checkpoints.with_files().values_list("step", flat=True))


def draw_stretch(monkeypatch: pytest.MonkeyPatch, *ends: int) -> None:
    """Have the stretch that ends with one of these steps drawn as evidence."""
    monkeypatch.setattr(checkpoints, "draw_rank", lambda checkpoint: b"0" if checkpoint.step in ends else b"1")


def download(work: Work, sha256: str) -> bytes:
    answer = work.get(sha256)
    assert answer.status_code == 200
    return b"".join(answer.streaming_content)  # type: ignore[attr-defined]


def test_checkpoints_of_a_whole_night_fit_into_the_lease_limit(work: Work, upload: Upload) -> None:
    one = WEIGHTS + OPTIMIZER
    assert NIGHT * one > 4 * LEASE_MAX
    release = Blob.objects.count()
    for step in range(1, NIGHT + 1):
        upload(work, step, WEIGHTS, OPTIMIZER - 12)
        counted = Lease.objects.aggregate(total=Sum("uploads__size"))["total"]
        assert counted <= 2 * (one + 20)
        assert counted + one <= LEASE_MAX, "there is room for the next one"
        kept = steps_with_files(work)
        assert kept[-2:] == [step - 1, step][-step:]
        assert len(kept) <= 4, "two, and both ends of one stretch"
    assert Blob.objects.count() == release + 2 * len(kept)
    assert work.job.checkpoints.count() == NIGHT, "the rows stay, with the hashes"
    work.finish("released")
    onward = Agent(make_node("next")[1]).work()
    resume = onward.spec.order.resume  # type: ignore[union-attr]
    assert resume is not None
    assert resume.step == NIGHT
    assert [len(download(onward, file.sha256)) for file in resume.files] == [file.size for file in resume.files]


def test_superseded_checkpoint_of_the_drawn_stretch_keeps_its_files(
    work: Work, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_stretch(monkeypatch, 4)
    for step in range(1, 9):
        upload(work, step)
    assert steps_with_files(work) == [3, 4, 7, 8]
    assert blob_of(weights_of(3))
    assert not blob_of(weights_of(2))
    assert Lease.objects.get().uploads.count() == 4, "evidence is kept for the site: it does not count"


def test_stretch_from_the_first_weights_drawn_keeps_one_checkpoint(
    work: Work, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_stretch(monkeypatch, 1)
    for step in range(1, 6):
        upload(work, step)
    assert steps_with_files(work) == [1, 4, 5]


def test_job_of_two_nodes_keeps_one_stretch_for_each(work: Work, upload: Upload) -> None:
    for step in range(1, 6):
        upload(work, step)
    work.finish("released")
    second = Agent(make_node("second")[1]).work()
    for step in range(6, 12):
        upload(second, step)
    rows = list(work.job.checkpoints.select_related("lease__node"))
    with_files = set(steps_with_files(work))
    for node in Node.objects.all():
        ends = [row for row in rows if row.lease and row.lease.node == node]
        drawn = min(ends, key=checkpoints.draw_rank).step
        assert {step for step in (drawn - 1, drawn) if step} <= with_files, node.name
    assert len(with_files) <= 6


def test_drawn_stretch_over_many_jobs_is_uniform(db: None) -> None:
    steps = range(1, 5)
    drawn = Counter(
        min(steps, key=lambda step: checkpoints.draw_rank(Checkpoint(job_id=job, step=step))) for job in range(2000)
    )
    assert all(abs(drawn[step] - 500) < 100 for step in steps), drawn  # five standard deviations


def test_checkpoint_that_a_run_starts_from_keeps_its_files(
    work: Work, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_stretch(monkeypatch, 1)
    season = Season.objects.create(name="first", corpus="python-library", tokenizer="bpe:512")
    track = Track.objects.create(slug="cpu", name="CPU", season=season, budget="10s", expected_seconds=10)
    about = {"title": "An idea", "repository": "here", "sha": "0" * 40, "architecture": "gpt"}
    entry = Entry.objects.create(
        kind=Entry.Kind.ARCHITECTURE, track=track, bundle=storage.store_bytes(b"an entry"), **about
    )
    upload(work, 1)
    upload(work, 2)
    start = work.job.checkpoints.get(step=2)
    run = Run.objects.create(entry=entry, track=track, season=season, seed=1, budget="10s", start_checkpoint=start)
    for step in range(3, 7):
        upload(work, step)
    assert steps_with_files(work) == [1, 2, 5, 6]
    run.delete()
    upload(work, 7)
    assert steps_with_files(work) == [1, 6, 7]


def test_file_that_a_newer_checkpoint_shares_is_kept(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_stretch(monkeypatch, 1)
    for step in range(1, 5):
        assert work.checkpoint(step, b"the same weights").status_code == 200
    assert Lease.objects.get().uploads.count() == 1
    assert work.uploaded(5, reference(b"the same weights")).status_code == 200


def test_file_that_an_active_lease_names_is_not_deleted(
    work: Work, upload: Upload, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_stretch(monkeypatch, 1, 4)
    upload(work, 1)
    upload(work, 2)
    work.finish("released")
    onward = Agent(make_node("next")[1]).work()
    for step in range(3, 7):
        upload(onward, step)
    assert steps_with_files(onward) == [1, 3, 4, 5, 6]
    assert download(onward, reference(weights_of(2)).sha256) == weights_of(2), "its order names it"


def test_checkpoint_older_than_the_newest_is_refused(work: Work) -> None:
    """It would come between the ends of a stretch that is kept for a replay."""
    assert work.checkpoint(10, b"weights 10").status_code == 200
    answer = work.checkpoint(9, b"weights 9")
    assert answer.status_code == 422
    assert "too old" in sentence(answer)
    assert Job.objects.get().checkpoints.count() == 1


@pytest.mark.parametrize("limit", ["BLOB_MAX_BYTES", "LEASE_MAX_BYTES"])
def test_node_refused_by_a_site_limit_is_not_blamed(work: Work, settings: Settings, limit: str) -> None:
    setattr(settings, limit, 10)
    answer = work.put(b"a larger file")
    assert answer.status_code == 413
    work.finish("failed", cause="infrastructure", reason=sentence(answer))
    job = Job.objects.get()
    assert (job.state, job.failures) == (Job.State.HELD, 0), "another node would meet the limit, too"
    assert "raise it in the track's limits" in job.reason
    assert Node.objects.get().failures == 0


def test_declared_size_that_is_not_plausible_is_counted_until_a_second_node_meets_the_limit(
    work: Work, settings: Settings
) -> None:
    settings.BLOB_MAX_BYTES = 10
    answer = work.call("/blobs", protocol.BlobQuery(files=(HUGE_FILE,)))
    assert answer.status_code == 413
    work.finish("failed", cause="infrastructure", reason=sentence(answer))
    job = Job.objects.get()
    assert (job.state, job.failures, Node.objects.get().failures) == (Job.State.QUEUED, 1, 1)
    second = Agent(make_node("next")[1]).work()
    answer = second.call("/blobs", protocol.BlobQuery(files=(HUGE_FILE,)))
    second.finish("failed", cause="infrastructure", reason=sentence(answer))
    job.refresh_from_db()
    assert (job.state, job.failures) == (Job.State.HELD, 1)


def test_entry_code_that_writes_too_large_files_fails(work: Work, settings: Settings) -> None:
    settings.BLOB_MAX_BYTES = 10
    Job.objects.update(entry=storage.store_bytes(b"its code"), needs_sandbox=True)
    work.finish("failed", cause="infrastructure", reason=sentence(work.put(b"a larger file")))
    job = Job.objects.get()
    assert (job.state, job.cause) == (Job.State.FAILED, "model")
    assert Node.objects.get().failures == 0


def test_limits_of_a_job_replace_those_of_the_settings(work: Work, settings: Settings) -> None:
    settings.BLOB_MAX_BYTES = settings.LEASE_MAX_BYTES = 10
    Job.objects.update(max_file_bytes=100, max_lease_bytes=20)
    assert work.put(b"a larger file").status_code == 200
    assert work.put(b"and another one").status_code == 413


def test_node_that_fails_for_another_reason_is_blamed(work: Work) -> None:
    work.finish("failed", cause="infrastructure", reason="The disk is full.")
    assert Node.objects.get().failures == 1
