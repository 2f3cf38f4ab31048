"""Misbehaving jobs fail with a reason for their author, and the node takes the next job."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.agent_process import Node, build_training_job, list_running_processes, wait_until_finished
from tests.support.node_api_server import LeaseRecord, NodeApiServer
from trainer.node.job_handlers.train import TIME_ADVICE

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]


CASES = {
    "a model that diverges": (
        {"misbehave": "fail(3, 'model', 'The loss became NaN at step 17.')"},
        ("model", "The loss became NaN at step 17."),
    ),
    "a reason that is not a sentence": (
        {"misbehave": "fail(3, 'model', '\\x1b[31mred\\n\\n' + 'x' * 1000)"},
        ("model", "[31mred " + "x" * 391 + "…"),
    ),
    "a reason that is no text": (
        {"misbehave": "fail(3, 'me', {})"},
        ("model", "The training failed: the model failed; the log says how."),
    ),
    "the machine's fault": (
        {"misbehave": "fail(1, 'machine', 'The disk is full.')"},
        ("infrastructure", "The disk is full."),
    ),
    "a crash": (
        {"misbehave": "os.kill(os.getpid(), 11)"},
        ("model", "The training's process crashed with a segmentation fault."),
    ),
    "a kill from outside": (
        {"misbehave": "os.kill(os.getpid(), 9)"},
        ("infrastructure", "The training's process was killed from outside (signal 9)."),
    ),
    "an unknown exit code": (
        {"misbehave": "sys.exit(77)"},
        ("model", "The training's process ended with exit code 77."),
    ),
    "no result": ({"misbehave": "sys.exit(0)"}, ("model", "The training ended without a result.")),
    "a result that is garbage": (
        {"misbehave": "(out / 'result.json').write_bytes(os.urandom(1000)); sys.exit(0)"},
        ("model", "The training ended without a result."),
    ),
    "a full disk quota": (
        {"misbehave": "[(out / str(i)).write_bytes(bytes(1_000_000)) for i in range(1000)]"},
        ("model", "The training was ended. It used more than 20.0 MB of disk."),
    ),
    "a fork bomb": (
        {"misbehave": "while True:\n  try: os.fork()\n  except OSError: pass"},
        ("model", "The training was ended. It had more than 8 processes at once."),
    ),
    "too much memory": (
        {"misbehave": "held = b'x' * 300_000_000; time.sleep(30)", "limits": {"memory_bytes": 200_000_000}},
        ("model", "The training was ended. It used more than 200.0 MB of memory."),
    ),
    "too long": (
        {"misbehave": "time.sleep(60)", "limits": {"wall_seconds": 1.0}},
        ("infrastructure", f"The training was ended. It ran longer than 1 seconds. {TIME_ADVICE}"),
    ),
}


def test_misbehaving_job_fails_with_its_reason(site: NodeApiServer, node: Node) -> None:
    leases = {case: site.queue_job(build_training_job(site, **config)) for case, (config, _) in CASES.items()}
    last = site.queue_job(build_training_job(site))
    node.start()
    for case, lease in leases.items():
        finish = wait_until_finished(site, lease).end
        assert (finish.outcome, (finish.cause, finish.reason)) == ("failed", CASES[case][1]), case
    finish = wait_until_finished(site, last).end
    assert finish.outcome == "done"
    assert list_running_processes(node.home) == []


def done(site: NodeApiServer, node: Node, **config: Any) -> LeaseRecord:
    lease = site.queue_job(build_training_job(site, **config))
    node.start()
    held = wait_until_finished(site, lease)
    assert held.end.outcome == "done", held.end.reason
    return held


def test_log_with_binary_output_is_readable_and_limited(site: NodeApiServer, node: Node) -> None:
    noise = "import random; sys.stdout.buffer.write(random.Random(1).randbytes(4_000_000)); sys.stdout.buffer.flush()"
    log = done(site, node, misbehave=noise).log
    assert "\0" not in log
    assert len(log.encode()) < 2_200_000
    assert log.endswith("[the output beyond 2 MiB is not kept]\n")


def test_metrics_with_invalid_lines_skips_them(site: NodeApiServer, node: Node) -> None:
    garbage = """
with (out / "metrics.jsonl").open("wb") as file:
    file.write(b"\\xff\\xfe garbage\\n[1, 2]\\n" + b"[" * 20000 + b"\\n" + b"x" * 600_000 + b"\\n")
    file.write(b'{"kind": "dev", "step": 0, "loss": NaN, "text": "\\\\u0000 \\\\ud800", "big": 1e999}\\n{"kind": 7}\\n')
"""
    held = done(site, node, misbehave=garbage)
    assert held.rows[0] == {"kind": "dev", "step": 0, "loss": None, "text": "\ufffd ?", "big": None}
    assert [row["step"] for row in held.rows[1:]] == list(range(1, 21))


def test_links_in_the_run_folder_are_not_followed(site: NodeApiServer, node: Node) -> None:
    links = """
os.symlink("/etc/passwd", out / "run.json.link")
os.mkfifo(out / "checkpoints-fifo")
(out / "run.json").unlink()
os.symlink("/etc/passwd", out / "run.json")
folder = out / "checkpoints" / "step-00000005"
folder.mkdir(parents=True)
os.symlink("/etc/passwd", folder / "model.safetensors")
(folder / "manifest.json").write_text(json.dumps({"step": 5, "files": [
    {"path": name, "sha256": "0" * 64, "size": 1} for name in ("model.safetensors", "../../../x")]}))
os.symlink("/etc", out / "checkpoints" / "step-00000006")
"""
    held = done(site, node, misbehave=links)
    assert held.end.files == ()
    assert [checkpoint.step for checkpoint in held.checkpoints] == [10, 20]
    assert not any(b"root:" in content for content in site.blobs.values())
