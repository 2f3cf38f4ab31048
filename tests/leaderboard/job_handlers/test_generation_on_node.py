"""Visitor prompts with a live site, a real agent, bubblewrap and a tiny model."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.test import Client

from leaderboard.models import Generation, Run, Season
from scheduler import node_tokens, storage
from scheduler.models import Checkpoint, Job, JobFile
from tests.support import scene
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer.sandbox import get_driver

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

TEXT = "The night train leaves at nine. The morning train arrives at seven. " * 20


def create_finished_run(folder: Path) -> Run:
    """Create a finished run with the weights of a minimal model, whose dataset the node has in its cache."""
    from trainer.checkpoint.store import write_checkpoint
    from trainer.data.tokenizer_training import train_bpe
    from trainer.models import load_architecture

    tokenizer, module = train_bpe([TEXT], 280), load_architecture("gpt")
    sizes = {"vocabulary_size": tokenizer.vocabulary_size, "sequence_length": 32, "depth": 1, "width": 16, "heads": 1}
    write_checkpoint(folder / "step-00000003", module.Model(module.Config(**sizes)), [], {"step": 3})
    run = scene.create_run(
        scene.create_entry(scene.create_track(), "Tiny"), state=Run.State.FINISHED, bits_per_byte=2.5
    )
    run.job = scene.create_job(run, state=Job.State.DONE)
    record = json.dumps({"format": 1, "arch": "gpt", "model": sizes}).encode()
    JobFile.objects.create(job=run.job, path="run.json", blob=storage.store_bytes(record))
    blobs = {path.name: storage.store_bytes(path.read_bytes()) for path in (folder / "step-00000003").iterdir()}
    files = [storage.build_file_reference(blob, name).model_dump() for name, blob in blobs.items()]
    run.checkpoint = Checkpoint.objects.create(job=run.job, step=3, manifest={"step": 3, "files": files})
    run.checkpoint.blobs.set(blobs.values())
    run.save()
    tokenizer.save(folder / "tokenizer.json")
    name = hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    Season.objects.update(dataset_hash=name)
    cached = folder / "agent" / "datasets" / name
    cached.mkdir(parents=True)
    (folder / "tokenizer.json").rename(cached / "tokenizer.json")
    (cached / "manifest.json").write_text(json.dumps({"hash": name}))
    return run


def request_generation(client: Client, prompt: str, run: Run) -> Generation:
    page = client.post("/try/", {"run": run.pk, "prompt": prompt, "tokens": "50"})
    assert page.status_code == 302, page.content.decode()
    generation = Generation.objects.latest("pk")
    wait_until(lambda: Generation.objects.get(pk=generation.pk).is_over)
    return Generation.objects.select_related("job").get(pk=generation.pk)


def test_prompt_on_real_node_is_answered_and_weights_are_cached(
    site: Any, live_server: Any, client: Client, tmp_path: Path
) -> None:
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
    run, home, log_path = create_finished_run(tmp_path), tmp_path / "agent", tmp_path / "agent.log"
    command = [sys.executable, "-m", "trainer.cli", "node", "--server", live_server.url, "--sandbox", "bubblewrap"]
    command += ["--token", node_tokens.create_join_token(trusted=True), "--home", str(home), "--name", "cellar"]
    with log_path.open("wb") as log:
        agent = subprocess.Popen(command, cwd=configured.BASE_DIR, stdout=log, stderr=log)
    try:
        first = request_generation(client, "The <b>train</b>", run)
        assert first.job.state == Job.State.DONE, (first.job.reason, log_path.read_text()[-3000:])
        cached = {path.name: path.stat().st_ino for path in (home / "weights").iterdir()}
        assert request_generation(client, "The", run).job.state == Job.State.DONE
    finally:
        agent.terminate()
        agent.wait(WAIT_SECONDS)
    assert cached == {path.name: path.stat().st_ino for path in (home / "weights").iterdir()}
    assert first.text
    assert 0 < first.written <= 50
    assert "The &lt;b&gt;train&lt;/b&gt;" in client.get(first.get_absolute_url()).content.decode()
