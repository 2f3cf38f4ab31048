"""Visitor prompts and a notebook with a live site, a real agent, bubblewrap and a tiny model."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.test import Client

from leaderboard.models import Generation, Run, Season, Track
from leaderboard.submissions import intake
from scheduler import node_tokens, storage
from scheduler.models import Checkpoint, Job, JobFile
from tests.leaderboard.conftest import Repository
from tests.leaderboard.job_handlers.test_notebook_runs import build_notebook
from tests.support import scene
from tests.support.waits import WAIT_SECONDS, wait_until
from trainer.sandbox import get_driver

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

TEXT = "The night train leaves at nine. The morning train arrives at seven. " * 20
CONNECTION = """import socket
try:
    socket.create_connection(('1.1.1.1', 80), 2)
except OSError:
    print('no network')
"""


@pytest.fixture
def start_agent(site: Any, live_server: Any, tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """Return a function that starts a trusted node and returns its folder."""
    if (reason := get_driver("bubblewrap").find_problem()) is not None:
        pytest.skip(reason)
    home, agents = tmp_path / "agent", []

    def start() -> Path:
        command = [sys.executable, "-m", "trainer.cli", "node", "--server", live_server.url, "--sandbox", "bubblewrap"]
        command += ["--token", node_tokens.create_join_token(trusted=True), "--home", str(home), "--name", "cellar"]
        with (tmp_path / "agent.log").open("wb") as log:
            agents.append(subprocess.Popen(command, cwd=configured.BASE_DIR, stdout=log, stderr=log))
        return home

    yield start
    for agent in agents:
        agent.terminate()
        agent.wait(WAIT_SECONDS)


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
    start_agent: Callable[[], Path], client: Client, tmp_path: Path
) -> None:
    run = create_finished_run(tmp_path)
    weights = start_agent() / "weights"
    first = request_generation(client, "The <b>train</b>", run)
    assert first.job.state == Job.State.DONE, (first.job.reason, (tmp_path / "agent.log").read_text()[-3000:])
    cached = {path.name: path.stat().st_ino for path in weights.iterdir()}
    assert request_generation(client, "The", run).job.state == Job.State.DONE
    assert cached == {path.name: path.stat().st_ino for path in weights.iterdir()}
    assert first.text
    assert 0 < (first.written or 0) <= 50
    assert "The &lt;b&gt;train&lt;/b&gt;" in client.get(first.get_absolute_url()).content.decode()


def test_notebook_parts_on_real_node_run_and_are_shown(
    start_agent: Callable[[], Path], main_repository: Repository, track: Track, client: Client, tmp_path: Path
) -> None:
    Track.objects.update(kind="community", nightly=False, budget="2m", expected_seconds=120)
    main_repository.git("checkout", "--quiet", "-b", "idea")
    first = f"from pathlib import Path\nPath('model/weights.txt').write_text('one')\n{CONNECTION}"
    second = (
        "from pathlib import Path\nfile = Path('model/weights.txt')\nfile.write_text(file.read_text() + ' and two')"
    )
    parts = {f"notebooks/idea-part{n}.ipynb": build_notebook(source) for n, source in ((1, first), (2, second))}
    main_repository.commit("An idea in two parts", dict(parts))
    track = Track.objects.select_related("season").get()
    entry = intake.submit_entry(str(main_repository.path), "idea", "An idea", "", track)
    (run,) = intake.approve_entry(entry, entry.sha, None)
    Season.objects.update(dataset_hash="")  # these notebooks need no dataset
    start_agent()
    wait_until(lambda: Run.objects.get(pk=run.pk).is_over)
    run.refresh_from_db()
    assert run.state == "finished", (run.state, run.reason, (tmp_path / "agent.log").read_text()[-2000:])
    assert "no network" in client.get(run.get_absolute_url()).content.decode()
    download = client.get(f"/runs/{run.pk}/parts/2/model/weights.txt")
    assert b"".join(download) == b"one and two"  # type: ignore[arg-type]
