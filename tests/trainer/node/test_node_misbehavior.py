"""Misbehaving jobs fail with a reason for their author, and the node takes the next job."""

from __future__ import annotations

import pytest

from tests.support.agent_process import Node, build_training_job, list_running_processes, run_job
from tests.support.node_api_server import LeaseRecord
from trainer.node.job_handlers.train import TIME_ADVICE

pytestmark = pytest.mark.processes


ENDED = "The training was ended."
CASES: dict[str, tuple[str, str, str]] = {
    "diverges": ("fail(3, 'model', 'The loss became NaN at step 17.')", "model", "The loss became NaN at step 17."),
    "reason is not a sentence": (
        "fail(3, 'model', '\\x1b[31mred\\n\\n' + 'x' * 1000)", "model", "[31mred " + "x" * 391 + "…",
    ),
    "reason is no text": ("fail(3, 'me', {})", "model", "The training failed: the model failed; the log says how."),
    "machine's fault": ("fail(1, 'machine', 'The disk is full.')", "infrastructure", "The disk is full."),
    "crash": ("os.kill(os.getpid(), 11)", "model", "The training's process crashed with a segmentation fault."),
    "kill from outside": (
        "os.kill(os.getpid(), 9)", "infrastructure", "The training's process was killed from outside (signal 9).",
    ),
    "unknown exit code": ("sys.exit(77)", "model", "The training's process ended with exit code 77."),
    "no result": ("sys.exit(0)", "model", "The training ended without a result."),
    "result is garbage": (
        "(out / 'result.json').write_bytes(os.urandom(1000)); sys.exit(0)", "model",
        "The training ended without a result.",
    ),
    "disk": (
        "[(out / str(i)).write_bytes(bytes(1_000_000)) for i in range(1000)]", "model",
        f"{ENDED} It used more than 20.0 MB of disk.",
    ),
    "processes": (
        "while True:\n  try: os.fork()\n  except OSError: pass", "model",
        f"{ENDED} It had more than 8 processes at once.",
    ),
    "memory": (
        "held = b'x' * 300_000_000; time.sleep(30)", "model", f"{ENDED} It used more than 200.0 MB of memory.",
    ),
    "time": ("time.sleep(60)", "infrastructure", f"{ENDED} It ran longer than 1 seconds. {TIME_ADVICE}"),
}  # fmt: skip
LIMITS = {"memory": {"memory_bytes": 200_000_000}, "time": {"wall_seconds": 1.0}}


@pytest.mark.parametrize("case", CASES)
def test_misbehaving_job_fails_with_its_reason(running_node: Node, case: str) -> None:
    code, cause, reason = CASES[case]
    spec = build_training_job(running_node.site, misbehave=code, limits=LIMITS.get(case, {}))
    finish = run_job(running_node.site, spec).end
    assert (finish.outcome, finish.cause, finish.reason) == ("failed", cause, reason)
    assert run_job(running_node.site, build_training_job(running_node.site, steps=1)).end.outcome == "done"
    assert list_running_processes(running_node.home) == []


def run_to_its_end(node: Node, code: str) -> LeaseRecord:
    held = run_job(node.site, build_training_job(node.site, misbehave=code))
    assert held.end.outcome == "done", held.end.reason
    return held


def test_log_with_binary_output_is_readable_and_limited(running_node: Node) -> None:
    noise = "import random; sys.stdout.buffer.write(random.Random(1).randbytes(4_000_000)); sys.stdout.buffer.flush()"
    log = run_to_its_end(running_node, noise).log
    assert "\0" not in log
    assert len(log.encode()) < 2_200_000
    assert log.endswith("[the output beyond 2 MiB is not kept]\n")


def test_metrics_with_invalid_lines_skips_them(running_node: Node) -> None:
    garbage = """
with (out / "metrics.jsonl").open("wb") as file:
    file.write(b"\\xff\\xfe garbage\\n[1, 2]\\n" + b"[" * 20000 + b"\\n" + b"x" * 600_000 + b"\\n")
    file.write(b'{"kind": "dev", "step": 0, "loss": NaN, "text": "\\\\u0000 \\\\ud800", "big": 1e999}\\n{"kind": 7}\\n')
"""
    held = run_to_its_end(running_node, garbage)
    assert held.rows[0] == {"kind": "dev", "step": 0, "loss": None, "text": "\ufffd ?", "big": None}
    assert [row["step"] for row in held.rows[1:]] == list(range(1, 21))


def test_links_in_the_run_folder_are_not_followed(running_node: Node) -> None:
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
    held = run_to_its_end(running_node, links)
    assert held.end.files == ()
    assert [checkpoint.step for checkpoint in held.checkpoints] == [10, 20]
    assert not any(b"root:" in content for content in running_node.site.blobs.values())
