"""A node's caches and jobs stay within its quota, and files in use are not evicted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.agent_process import HASH, build_training_job, run_job
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import NodeApiServer
from trainer.node.disk_quota import PREPARING, DiskQuota
from trainer.node.outcome import JobFailedError

pytestmark = pytest.mark.processes

MB = 10**6


def add_dataset(home: Path, name: str, size: int, used_at: float) -> Path:
    folder = home / "datasets" / name
    (folder / "train").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "train" / "00000.bin").write_bytes(bytes(size - 2))
    os.utime(folder, (used_at, used_at))
    return folder


def add_weights(home: Path, name: str, size: int, used_at: float) -> Path:
    file = home / "weights" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(bytes(size))
    os.utime(file, (used_at, used_at))
    return file


def test_oldest_caches_are_evicted_until_the_job_fits(tmp_path: Path) -> None:
    oldest, older = add_dataset(tmp_path, "a", 3 * MB, 100), add_weights(tmp_path, "w", 2 * MB, 200)
    newest = add_dataset(tmp_path, "b", 4 * MB, 300)
    quota = DiskQuota(tmp_path, 10 * MB)
    assert quota.get_available_bytes() == 10 * MB, "all of it is a cache"
    quota.reserve(1, 5 * MB)
    assert [path.exists() for path in (oldest, older, newest)] == [False, False, True]
    assert quota.get_available_bytes() == 5 * MB


def test_file_that_is_renamed_while_the_cache_is_listed_is_left_out(tmp_path: Path) -> None:
    add_dataset(tmp_path, "a", 3 * MB, 100)
    for folder in ("datasets", "weights"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "0.renamed").symlink_to(tmp_path / "nothing")  # `stat` fails as for a file that has gone
    assert DiskQuota(tmp_path, 10 * MB).get_available_bytes() == 10 * MB


def test_dataset_in_use_stays_and_the_job_that_needs_its_space_is_refused(tmp_path: Path) -> None:
    used, other = add_dataset(tmp_path, "used", 6 * MB, 100), add_dataset(tmp_path, "other", 1 * MB, 200)
    quota = DiskQuota(tmp_path, 10 * MB)
    with quota.use_dataset(1, "used"):
        pass
    assert quota.get_available_bytes() == 4 * MB
    with pytest.raises(JobFailedError, match=r"needs 0\.01 GB of disk"):
        quota.reserve(2, 5 * MB)
    assert used.exists()
    assert other.exists(), "a cache is evicted although the job does not fit"
    quota.release(1)
    quota.reserve(2, 5 * MB)
    assert not used.exists(), "it was used before the other one"


def test_download_of_a_dataset_keeps_its_space_until_it_ends(tmp_path: Path) -> None:
    quota = DiskQuota(tmp_path, 10 * MB)
    with quota.use_dataset(1, "new", 6 * MB):
        assert quota.get_available_bytes() == 4 * MB
        with pytest.raises(JobFailedError):
            quota.reserve(2, 5 * MB)
        add_dataset(tmp_path, "new", 2 * MB, 100)
        assert quota.get_available_bytes() == 4 * MB, "4 MB are still to come"
    assert quota.get_available_bytes() == 8 * MB
    quota.release(1)
    assert quota.get_available_bytes() == 10 * MB


def test_releases_and_fresh_files_are_counted_and_kept(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "release").write_bytes(bytes(2 * MB))
    fresh = add_weights(tmp_path, "fresh", MB, 100)
    fresh.touch()
    quota = DiskQuota(tmp_path, 10 * MB)
    assert quota.get_available_bytes() == 7 * MB
    quota.reserve(1, 7 * MB)
    assert fresh.exists()


def test_agent_with_a_quota_evicts_an_old_dataset_for_a_job(site: NodeApiServer, tmp_path: Path) -> None:
    leftover, old = (add_dataset(tmp_path, name, 25 * MB, 100) for name in (PREPARING, "f" * 64))
    agent = InProcessAgent(site, tmp_path, disk_bytes=30 * MB).start()
    try:
        finish = run_job(site, build_training_job(site)).end
        assert finish.outcome == "done", finish
        assert not leftover.exists(), "what a killed agent was preparing"
        assert not old.exists()
        assert (tmp_path / "datasets" / HASH / "manifest.json").exists()
        finish = run_job(site, build_training_job(site, limits={"disk_bytes": 40 * MB})).end
        assert (finish.outcome, finish.cause) == ("failed", "infrastructure")
        assert finish.reason == "The job needs 0.04 GB of disk; of its quota this node has 0.03."
    finally:
        agent.stop()


def test_download_of_a_dataset_makes_room_for_itself(tmp_path: Path) -> None:
    old = add_dataset(tmp_path, "old", 6 * MB, 100)
    quota = DiskQuota(tmp_path, 10 * MB)
    quota.reserve(1, 3 * MB)
    assert old.exists()
    with quota.use_dataset(1, "new", 5 * MB):
        assert not old.exists()
    with pytest.raises(JobFailedError), quota.use_dataset(1, "new", 8 * MB):
        pass
