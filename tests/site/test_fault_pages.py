"""What the pages of run, node and sponsor say of each fault of a machine, by real agents whose sandbox is broken.

`python -m benchmarks.faults` writes the table, benchmarks/results/faults.md.
"""

from __future__ import annotations

import dataclasses
import html
import os
import re
import shutil
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from leaderboard import runs
from leaderboard.models import Entry, Run, Season
from scheduler.models import Job, Lease, Node, Sponsor
from tests.support import full_disk, pool, scene
from tests.support.tested_agent import run_site_agent
from tests.support.waits import wait_until
from trainer import protocol
from trainer.sandbox import Mount, SandboxProcess, SandboxSpec, get_driver
from trainer.sandbox.bubblewrap import BubblewrapDriver
from trainer.sandbox.spec import OutputStream

pytestmark = [pytest.mark.processes, pytest.mark.self_test, pytest.mark.slow]
INJECTED = Path(__file__).parents[1] / "support" / "injected_fault"
TABLE = os.environ.get("FAULTS_TABLE", "")
"""File to which each test appends its row; empty: none."""
TEXT = "The night train leaves at nine. The morning train arrives at seven.\n"
TRAINING = {"sequence_length": 32, "batch": 4, "precision": "fp32", "compile": False, "evaluations": 1}
STEPS = 40
SLOW_LIMIT_SECONDS = 60.0
GARBAGE = b"garbage" * 100
PASSED = protocol.SelfTestResult(
    sandbox="bubblewrap", device="cpu", gpus=0, loss=6.0, bits_per_byte=2.5, train_seconds=2.0, score_seconds=1.0
).model_dump()


class BrokenSandbox(BubblewrapDriver):
    """Bubblewrap in which trainings fail."""

    def __init__(self, fault: str, library: Path | None = None) -> None:
        self.fault = fault
        self.library = library

    def start(self, spec: SandboxSpec, stdout: OutputStream, stderr: OutputStream) -> SandboxProcess:
        added = {"PYTHONPATH": f"{INJECTED}:{spec.environment['PYTHONPATH']}", "INJECTED_FAULT": self.fault}
        mounts = [*spec.mounts, Mount(INJECTED)]
        if self.library is not None:
            added |= {"LD_PRELOAD": str(self.library), "FULL_DISK": str(self.library)}
            mounts.append(Mount(self.library))
        return super().start(
            dataclasses.replace(spec, environment={**spec.environment, **added}, mounts=mounts), stdout, stderr
        )


@pytest.fixture
def owner(transactional_db: None) -> User:
    user = User.objects.create_user("ada")
    Sponsor.objects.create(user=user, name="Ada's cellar")
    return user


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a node that has the season's dataset."""
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
    folder = tmp_path / "node"
    (folder / "datasets").mkdir(parents=True)
    return folder


@pytest.fixture
def run(home: Path, tmp_path: Path, owner: User) -> Run:
    """A queued run of main."""
    from trainer.data.dataset import prepare_dataset

    (tmp_path / "text.txt").write_text("".join(f"{number}. {TEXT}" for number in range(4000)))
    corpus = f"files:{tmp_path}/text.txt"
    dataset = prepare_dataset(corpus, "bpe:512", tmp_path / "prepared", None)
    shutil.move(tmp_path / "prepared", home / "datasets" / dataset.hash)
    track = scene.create_track(
        budget=f"{STEPS}steps",
        config={"threads": 1, "model": {"depth": 1, "width": 32, "heads": 2}, "train": TRAINING},
        limits={"memory_bytes": 4 * 2**30, "disk_bytes": 2**28},
        probe_seconds=0,
    )
    Season.objects.update(corpus=corpus, tokenizer="bpe:512", limit_bytes=None, dataset_hash=dataset.hash)
    track.refresh_from_db()
    queued = scene.create_run(scene.create_entry(track, "Baseline", kind=Entry.Kind.MAIN), state=Run.State.WAITING)
    assert runs.queue_run(queued)
    return queued


def let_node_fail(site_url: str, home: Path, owner: User, sandbox: BrokenSandbox) -> Node:
    """Run an agent with this sandbox until its self-test or its first job has failed; return the node."""

    def has_failed() -> bool:
        ended = Lease.objects.filter(state=Lease.State.FINISHED, outcome="failed")
        return ended.exists() or Job.objects.filter(kind="train", state=Job.State.DONE).exists()

    with run_site_agent(site_url, home, sandbox) as agent:
        Node.objects.filter(pk=agent.node.pk).update(owner=owner)
        wait_until(has_failed)
        return agent.node


def read_pages(client: Client, owner: User, run: Run, node: Node, fault: str) -> dict[str, str]:
    """Return what each page says; write it to the table."""
    public = client.get(f"/runs/{run.pk}/").content.decode()
    nodes = client.get(reverse("nodes")).content.decode()
    sponsors = client.get(reverse("sponsors")).content.decode()
    client.force_login(owner)
    own = client.get(reverse("node", args=[node.pk])).content.decode()
    certificate = client.get(reverse("certificate", args=[owner.sponsor.pk]))
    thanked = [
        *(["listed with thanks"] if "Ada" in sponsors else ["not listed"]),
        *(["has a certificate"] if certificate.status_code == 200 else ["no certificate"]),
        *(["“jobs served” on the node's page"] if "served</dt>" in own else ["no “jobs served”"]),
    ]
    said = {
        "run": find_text(public, '<header class="page-head run-head"', "status", "reason"),
        "node": find_text(own, "<section>", "status", "reason"),
        "pool": find_text(nodes, "<tbody>", "status", "why"),
        "sponsor": ", ".join(thanked),
    }
    if TABLE:
        row = f"| {fault} | {said['run']} | {said['node']} | {said['pool']} | {said['sponsor']} |\n"
        with Path(TABLE).open("a") as table:
            table.write(re.sub(r"/[^ ']*/node/work/", "work/", row))  # the test's folder says nothing
    return said


def find_text(page: str, start: str, *classes: str) -> str:
    """Return the text of the first element of each class after `start`."""
    part, found = page[page.index(start) :], []
    for name in classes:
        if match := re.search(rf'<(span|p)[^>]*class="{name}[ "][^>]*>(.*?)</\1>', part, re.DOTALL):
            found.append(" ".join(html.unescape(re.sub("<[^>]+>", "", match[2])).split()))
    return ": ".join(text for text in found if text).replace("|", "\\|")


def test_missing_package_shows_in_self_test(site_url: str, home: Path, run: Run, owner: User, client: Client) -> None:
    node = let_node_fail(site_url, home, owner, BrokenSandbox("missing package"))
    said = read_pages(client, owner, run, node, "A package is missing in the sandbox")
    assert node.fault == Node.Fault.SELF_TEST
    assert "No module named 'packaging'" in said["node"]
    assert said["run"].startswith("waiting")
    assert said["sponsor"] == "not listed, no certificate, no “jobs served”"


def test_full_disk_shows_in_self_test(
    site_url: str, home: Path, run: Run, owner: User, client: Client, tmp_path: Path
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    library = full_disk.build_library(tmp_path)
    node = let_node_fail(site_url, home, owner, BrokenSandbox("", library))
    said = read_pages(client, owner, run, node, "The disk is full")
    assert node.fault == Node.Fault.SELF_TEST
    assert "Training one step: " in said["node"]
    assert said["sponsor"] == "not listed, no certificate, no “jobs served”"


@pytest.mark.parametrize(
    ("fault", "described"),
    [
        ("cuda error", "CUDA error in the third step"),
        ("killed", "The process is killed in the third step"),
    ],
)
def test_fault_in_job_makes_node_failing(
    site_url: str, home: Path, run: Run, owner: User, client: Client, fault: str, described: str
) -> None:
    node = let_node_fail(site_url, home, owner, BrokenSandbox(fault))
    said = read_pages(client, owner, run, node, described)
    assert node.fault == Node.Fault.JOB
    assert said["node"].startswith("failing")
    assert said["sponsor"] == "not listed, no certificate, no “jobs served”"


def test_garbage_checkpoint_of_another_node_is_shown(
    site_url: str, home: Path, run: Run, owner: User, client: Client
) -> None:
    """The rules of checkpoints are those of uploads; this test only records what the pages say."""
    liar = pool.Agent(pool.create_node("liar")[1])
    liar.claim_job().finish(result=PASSED)
    claimed = liar.claim_job()
    assert claimed.job == run.job
    assert claimed.upload_blob(GARBAGE).status_code == 200
    claimed.report_checkpoint(4 * 10**18, pool.build_file_reference(GARBAGE))
    claimed.finish("released")
    node = let_node_fail(site_url, home, owner, BrokenSandbox(""))
    said = read_pages(client, owner, run, node, "Another node uploaded garbage as a checkpoint")
    assert said["run"]


def test_slow_machine_is_shown(site_url: str, home: Path, run: Run, owner: User, client: Client) -> None:
    """The rules of slow machines are those of the limits; this test only records what the pages say."""
    assert run.job is not None
    limits = {**run.job.limits, "wall_seconds": SLOW_LIMIT_SECONDS}
    Job.objects.filter(pk=run.job.pk).update(limits=limits)
    node = let_node_fail(site_url, home, owner, BrokenSandbox("slow"))
    said = read_pages(client, owner, run, node, f"5 s a step, {SLOW_LIMIT_SECONDS:.0f} s allowed")
    assert said["run"]
