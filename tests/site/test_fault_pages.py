"""What the pages of node and sponsor say of a fault of a machine, by real agents whose sandbox is broken."""

from __future__ import annotations

import dataclasses
import html
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
from tests.support import scene
from tests.support.tested_agent import run_site_agent
from tests.support.waits import wait_until
from trainer.sandbox import Mount, SandboxProcess, SandboxSpec, get_driver
from trainer.sandbox.bubblewrap import BubblewrapDriver
from trainer.sandbox.spec import OutputStream

pytestmark = [pytest.mark.processes, pytest.mark.self_test, pytest.mark.slow]
INJECTED = Path(__file__).parents[1] / "support" / "injected_fault"
TEXT = "The night train leaves at nine. The morning train arrives at seven.\n"
TRAINING = {"sequence_length": 32, "batch": 4, "precision": "fp32", "compile": False, "evaluations": 1}
STEPS = 40


class BrokenSandbox(BubblewrapDriver):
    """Bubblewrap in which trainings fail."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def start(self, spec: SandboxSpec, stdout: OutputStream, stderr: OutputStream) -> SandboxProcess:
        added = {"PYTHONPATH": f"{INJECTED}:{spec.environment['PYTHONPATH']}", "INJECTED_FAULT": self.fault}
        changes = {"environment": {**spec.environment, **added}, "mounts": [*spec.mounts, Mount(INJECTED)]}
        return super().start(dataclasses.replace(spec, **changes), stdout, stderr)  # type: ignore[arg-type]


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


def read_reason(page: str) -> str:
    """Return status and reason on the page of a node."""
    part = page[page.index("<section>") :]
    found = [
        re.search(rf'<(span|p)[^>]*class="{name}[ "][^>]*>(.*?)</\1>', part, re.DOTALL) for name in ("status", "reason")
    ]
    return ": ".join(" ".join(html.unescape(re.sub("<[^>]+>", "", match[2])).split()) for match in found if match)


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("missing package", Node.Fault.SELF_TEST, "training needs the package packaging"),
        ("killed", Node.Fault.JOB, "failing"),
    ],
)
def test_fault_of_a_machine_is_on_its_page_and_earns_no_thanks(
    site_url: str, home: Path, run: Run, owner: User, client: Client, fault: str, kind: str, said: str
) -> None:
    node = let_node_fail(site_url, home, owner, BrokenSandbox(fault))

    assert node.fault == kind
    assert "Ada" not in client.get(reverse("sponsors")).content.decode()
    client.force_login(owner)
    page = client.get(reverse("node", args=[node.pk])).content.decode()
    assert said in read_reason(page)
    assert "served</dt>" not in page
    assert client.get(reverse("certificate", args=[owner.sponsor.pk])).status_code == 404
    if kind == Node.Fault.SELF_TEST:
        run.refresh_from_db()
        assert run.state == Run.State.QUEUED
