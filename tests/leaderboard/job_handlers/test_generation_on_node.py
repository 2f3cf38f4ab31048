"""Two visitor prompts with a live site, a real agent, bubblewrap and a tiny model."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.test import Client

from leaderboard.models import Generation, Run, Season
from scheduler import node_tokens, storage
from scheduler.models import Blob, Checkpoint, Job, JobFile
from tests.support import scene
from tests.support.waits import WAIT_SECONDS
from trainer.sandbox import get_driver

pytestmark = pytest.mark.processes

TEXT = "The night train leaves at nine. The morning train arrives at seven. " * 20


def train_tiny_model(folder: Path) -> tuple[bytes, list[Path], bytes]:
    """Return run.json, the checkpoint's files and the tokenizer of a minimal model."""
    from trainer.checkpoint.store import write_checkpoint
    from trainer.data.tokenizer_training import train_bpe
    from trainer.models import load_architecture

    tokenizer = train_bpe([TEXT], 280)
    tokenizer.save(folder / "tokenizer.json")
    module = load_architecture("gpt")
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "sequence_length": 32, "depth": 1, "width": 16, "heads": 1}
    write_checkpoint(folder / "step-00000003", module.Model(module.Config(**sizes)), [], {"step": 3})
    record = json.dumps({"format": 1, "arch": "gpt", "model": sizes}).encode()
    return record, sorted((folder / "step-00000003").iterdir()), (folder / "tokenizer.json").read_bytes()


def store_file(path: Path) -> Blob:
    return storage.store_bytes(path.read_bytes())


def create_finished_run(record: bytes, files: list[Path]) -> Run:
    """Create a finished run with these weights."""
    run = scene.create_run(
        scene.create_entry(scene.create_track(), "Tiny"), state=Run.State.FINISHED, bits_per_byte=2.5
    )
    run.job = scene.create_job(run, state=Job.State.DONE)
    JobFile.objects.create(job=run.job, path="run.json", blob=storage.store_bytes(record))
    parts = [storage.build_file_reference(store_file(path), path.name).model_dump() for path in files]
    run.checkpoint = Checkpoint.objects.create(job=run.job, step=3, manifest={"step": 3, "files": parts})
    run.checkpoint.blobs.set([store_file(path) for path in files])
    run.save()
    return run


def write_dataset(home: Path, tokenizer: bytes) -> None:
    """Write the season's dataset into the node's cache, since preparing one takes long."""
    name = hashlib.sha256(tokenizer).hexdigest()
    Season.objects.update(dataset_hash=name)
    folder = home / "datasets" / name
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    (folder / "manifest.json").write_text(json.dumps({"hash": name}))


def request_generation(client: Client, prompt: str, run: Run) -> Generation:
    page = client.post("/try/", {"run": run.pk, "prompt": prompt, "tokens": "50"})
    assert page.status_code == 302, page.content.decode()
    token = page["Location"].strip("/").rpartition("/")[2]
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        generation = Generation.objects.select_related("job").get(token=token)
        if generation.is_over:
            return generation
        time.sleep(0.2)
    raise AssertionError(f"no text after {WAIT_SECONDS} s")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_prompt_on_real_node_is_answered_and_weights_are_cached(
    site: Any, live_server: Any, client: Client, tmp_path: Path
) -> None:
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
    home = tmp_path / "agent"
    record, files, tokenizer = train_tiny_model(tmp_path)
    run = create_finished_run(record, files)
    write_dataset(home, tokenizer)
    command = [sys.executable, "-m", "trainer.cli", "node", "--server", live_server.url, "--sandbox", "bubblewrap"]
    arguments = ["--token", node_tokens.create_join_token(trusted=True), "--home", str(home), "--name", "cellar"]
    log_path = tmp_path / "agent.log"
    with log_path.open("wb") as log:
        agent = subprocess.Popen(
            [*command, *arguments], cwd=configured.BASE_DIR, env={**os.environ}, stdout=log, stderr=log
        )
        try:
            first = request_generation(client, "The <b>train</b>", run)
            cached_inodes = {path.name: path.stat().st_ino for path in (home / "weights").iterdir()}
            second = request_generation(client, "The", run)
        finally:
            agent.terminate()
            agent.wait(WAIT_SECONDS)
    assert first.job.state == Job.State.DONE, (first.job.reason, log_path.read_text()[-3000:])
    assert first.text
    assert first.written is not None
    assert 0 < first.written <= 50
    assert second.job.state == Job.State.DONE
    assert cached_inodes == {path.name: path.stat().st_ino for path in (home / "weights").iterdir()}
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.name != "optimizer.pt"} == set(
        cached_inodes
    )
    page = client.get(first.get_absolute_url()).content.decode()
    assert "The &lt;b&gt;train&lt;/b&gt;" in page
