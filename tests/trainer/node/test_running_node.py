"""A node does jobs of all kinds, and everything that they write arrives."""

from __future__ import annotations

import hashlib
import json
import stat
from typing import Any

import pytest

from tests.support import stdlib_release
from tests.support.agent_process import (
    LIMITS,
    Node,
    build_dataset_pin,
    build_job,
    build_training_job,
    list_running_processes,
    run_job,
)
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import LeaseRecord, NodeApiServer, read_json_blob
from trainer import protocol
from trainer.node.job_handlers.notebook import TIME_ADVICE

pytestmark = pytest.mark.processes


@pytest.mark.usefixtures("requires_sandbox")
def test_node_sends_what_training_jobs_write_and_keeps_identity_and_dataset(site: NodeApiServer, node: Node) -> None:
    first = site.queue_job(build_training_job(site, steps=25))
    assert node.run("--once", "--label", "cpu", sandbox="bubblewrap") == 0
    held = site.leases[first]

    assert held.end.outcome == "done", held.end.reason + held.log
    assert held.end.result["final_loss"] == 10 / 25
    assert held.end.result["data"] == ["dev", "manifest.json", "tokenizer.json", "train"], "never the test split"
    assert not {"SECRET_KEY", "PREPARATIONS"} & {*held.end.result["environment"]}
    assert [(row["step"], row["loss"]) for row in held.rows] == [(step, 10 / step) for step in range(1, 26)]
    assert held.log == "training entry from step 0\n"
    assert [checkpoint.step for checkpoint in held.checkpoints] == [10, 20]
    names = ["model.safetensors", "optimizer.pt", "state.json", "manifest.json"]
    assert [file.path for file in held.checkpoints[0].files] == names
    assert [file.path for file in held.end.files] == ["run.json"]
    assert read_json_blob(site, held.end.files[0])["arch"] == "entry"
    assert site.registered[0].labels == ("cpu",)
    assert site.registered[0].hardware.sandboxes == ("bubblewrap",)
    assert list((node.home / "work").iterdir()) == []
    assert list_running_processes(node.home) == []

    identity = node.home / "identity.json"
    assert stat.S_IMODE(identity.stat().st_mode) == 0o600
    assert json.loads(identity.read_text())["node"] == 7
    second = site.queue_job(build_training_job(site))
    assert node.run("--once", token=None) == 0
    assert site.leases[second].end.outcome == "done"
    assert len(site.registered) == 1
    assert node.home.with_suffix(".preparations").read_text() == "python-docs\n", "the dataset is prepared once"


def build_job_with_dataset(site: NodeApiServer, hash: str, files: tuple[protocol.FileRef, ...]) -> protocol.JobSpec:
    pin = build_dataset_pin(hash).model_copy(update={"files": files})
    return build_job(site, protocol.TrainOrder(dataset=pin, config={"steps": 20}))


def test_published_dataset_is_downloaded_once_and_not_prepared(running_node: Node) -> None:
    site, home, hash = running_node.site, running_node.home, "c" * 64
    contents = {"manifest.json": json.dumps({"hash": hash}).encode(), "tokenizer.json": b'{"published": 1}'}
    contents |= {"train/00000.bin": b"train" * 1000, "dev/00000.bin": b"dev"}
    files = tuple(site.store_blob(content, path) for path, content in contents.items())
    site.inject_fault("down", f"blobs/{files[2].sha256}", times=1)
    truncated = home / "datasets" / hash / files[3].path
    truncated.parent.mkdir(parents=True)
    truncated.write_bytes(b"d")
    for _ in range(2):
        finish = run_job(site, build_job_with_dataset(site, hash, files)).end
        assert (finish.outcome, finish.result["data"]) == ("done", ["dev", "manifest.json", "tokenizer.json", "train"])
    for file in files:
        assert (home / "datasets" / hash / file.path).read_bytes() == contents[file.path]
        assert sum(file.sha256 in request for request in site.requests) == (2 if file is files[2] else 1)


def test_training_resumes_from_another_nodes_checkpoint(running_node: Node) -> None:
    site = running_node.site
    first = run_job(site, build_training_job(site, steps=20)).checkpoints
    held = run_job(site, build_training_job(site, resume=first[0], steps=20))
    assert held.end.outcome == "done"
    assert held.log == "training entry from step 10\n"
    assert [row["step"] for row in held.rows] == list(range(11, 21))
    assert held.checkpoints == first[1:]


def build_score_job(
    site: NodeApiServer, graph: bool = False, entry: bool = True, secret: str | None = None, **run: object
) -> protocol.JobSpec:
    contents = {"model.safetensors": b"w", "optimizer.pt": b"o", "manifest.json": b"{}"}
    traced = tuple(site.store_blob(b"{}", name) for name in protocol.GRAPH_FILES)
    digest = hashlib.sha256("".join(file.sha256 for file in traced).encode()).hexdigest()
    checkpoint = protocol.Checkpoint(step=20, files=tuple(site.store_blob(*item[::-1]) for item in contents.items()))
    order = protocol.ScoreOrder(
        dataset=build_dataset_pin(),
        run=site.store_blob(json.dumps(run).encode(), "run.json"),
        checkpoint=checkpoint,
        graph=protocol.GraphFiles(hash=digest, files=traced) if graph else None,
        limit_tokens=2000,
        test_secret=secret,
        reference=site.store_blob(b"losses", "losses.npy"),
        suite=("blimp", "lambada_openai"),
        suite_files=(site.store_blob(b"questions", "blimp/a.jsonl"), site.store_blob(b"more", "blimp/b.jsonl")),
    )
    return build_job(site, order, entry)


SECRET = "5ec2e7" + "0" * 58
SCORED = {
    "bits_per_byte": 1.5,
    "files": ["manifest.json", "model.safetensors"],
    "architecture": "baseline",
    "reference": "losses",
    "limit": "2000",
    "suite": "blimp,lambada_openai",
    "evaluation": {"blimp/a.jsonl": "questions", "blimp/b.jsonl": "more"},
    "test": "test",
    "sees_secret": False,
    "tokenizer": True,
}


def test_scoring_job_without_entry_code_runs_the_release(running_node: Node) -> None:
    site = running_node.site
    for graph in (True, False):
        held = run_job(site, build_score_job(site, graph, entry=False))
        assert held.end.outcome == "done", held.end.reason + held.log
        assert held.end.result == {**SCORED, "graph": sorted(protocol.GRAPH_FILES) if graph else []}
        assert [file.path for file in held.end.files] == ["items.jsonl.gz", "losses.npy", "tokenizer.json"]
        assert held.log == "scoring\n"
    names = {hashlib.sha256(content).hexdigest() for content in (b"questions", b"more")}
    assert {path.name for path in (running_node.home / "evaluation").iterdir()} == names
    assert all(sum(name in request for request in site.requests) == 1 for name in names), "downloaded once"
    held = run_job(site, build_score_job(site, graph=True, entry=False, secret=SECRET))
    assert held.end.result["test"] == f"2000 tokens of test, drawn by {SECRET}"
    assert held.end.result["sees_secret"] is False
    assert SECRET not in held.log


def test_scoring_job_with_entry_code_returns_only_numbers(running_node: Node) -> None:
    held = run_job(running_node.site, build_score_job(running_node.site, secret=SECRET))
    assert held.end.outcome == "done", held.end.reason + held.log
    assert held.end.result == {"bits_per_byte": 1.5, "tokenizer": True, "sees_secret": False}
    assert [file.path for file in held.end.files] == ["tokenizer.json"]
    assert held.log == ""


@pytest.mark.parametrize(
    ("run", "entry", "cause", "reason"),
    [
        ("cheats", False, "model", "The model looks ahead."),
        ("sleeps", True, "infrastructure", "The scoring was ended."),
        ("breaks", False, "infrastructure", "ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_failed_scoring_job_has_a_cause_and_a_reason(
    running_node: Node, run: str, entry: bool, cause: str, reason: str
) -> None:
    spec = build_score_job(running_node.site, entry=entry, **{run: True})
    if run == "sleeps":
        spec = spec.model_copy(update={"limits": spec.limits.model_copy(update={"wall_seconds": 1.0})})
    finish = run_job(running_node.site, spec).end
    assert (finish.outcome, finish.cause) == ("failed", cause)
    assert finish.reason.startswith(reason)


# --- smoke tests, probes of the speed and self-tests ------------------------------------------------------------------


def build_smoke_test(site: NodeApiServer, **config: object) -> protocol.JobSpec:
    config = {"arch": "waves", **config}
    order = protocol.SmokeOrder(config=config, tokenizer="bpe:256", vocabulary_size=256, memory_bytes=8e10)
    return build_job(site, order)


def test_smoke_job_runs_the_sites_code(running_node: Node) -> None:
    site = running_node.site
    held = run_job(site, build_smoke_test(site))
    assert (held.end.outcome, held.end.result["passed"], held.end.result["parameters"]) == ("done", True, 7.0)
    assert held.end.result["sentence"] == (
        "waves: baseline smokes NAME = \"entry\", {'--sandbox': 'bubblewrap', '--tokenizer': 'bpe:256', "
        "'--memory-bytes': '80000000000.0', '--peak': None}"
    )
    assert held.log == "smoking\n"
    assert [file.path for file in held.end.files] == [f"graph/{name}" for name in protocol.GRAPH_FILES]
    failing = run_job(site, build_smoke_test(site, fails=True)).end
    assert (failing.outcome, failing.result["passed"]) == ("done", False)
    broken = run_job(site, build_smoke_test(site, breaks=True)).end
    assert (broken.outcome, broken.cause) == ("failed", "infrastructure")
    nonsense = run_job(site, build_smoke_test(site, nonsense={"passed": 7})).end
    assert nonsense.reason == "The smoke test's result is malformed."


READING = {"tokens_per_second": 256.0, "spread": 0.01, "steps": 5, "loss": 8.5}
LIE = """
write = type(out).write_text
def lie(path, text):
    if path.name == "result.json":
        text = json.dumps({**json.loads(text), "probes": {"before": "as fast as you like"}})
    return write(path, text)
type(out).write_text = lie
"""


def test_probe_readings_ignore_the_trainings_own_claim(running_node: Node) -> None:
    site = running_node.site
    held = run_job(site, build_training_job(site, probe=protocol.ProbeSpec(seconds=1), misbehave=LIE))
    assert held.end.outcome == "done", held.end.reason + held.log
    assert held.end.result["probes"] == {"version": 1, "before": READING, "after": READING}
    assert held.log == "probing\ntraining entry from step 0\nprobing\n"
    assert run_job(site, build_training_job(site, misbehave=LIE)).end.result["probes"] is None
    failing = run_job(site, build_training_job(site, probe=protocol.ProbeSpec(seconds=1, width=128))).end
    assert (failing.outcome, failing.result["probes"]) == ("done", {"version": 1, "before": None, "after": None})


TRAIN = """
import json, sys
from pathlib import Path

options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
Path(options["--out"], "run.json").write_text("{}")
Path(options["--out"], "result.json").write_text(json.dumps({"final_loss": 6.0}))
"""
SCORE = """
import json

print(json.dumps({"bits_per_byte": 2.5}))
"""


def build_self_test(site: NodeApiServer, **files: str) -> protocol.JobSpec:
    sources = {**stdlib_release.FILES, "trainer/train.py": TRAIN, "trainer/cli/score.py": SCORE, **files}
    spec = build_job(site, protocol.SelfTestOrder(), entry=False)
    release = site.store_blob(stdlib_release.build_tar(sources), "release.tar")
    return spec.model_copy(update={"release": release})


def test_self_test_reports_what_it_measured(running_node: Node) -> None:
    finish = run_job(running_node.site, build_self_test(running_node.site)).end
    assert finish.outcome == "done", finish.reason
    result = protocol.SelfTestResult.model_validate(finish.result)
    assert (result.sandbox, result.device, result.loss, result.bits_per_byte) == ("bubblewrap", "cpu", 6.0, 2.5)


MISSING = "import no_such_package"
NO_LM_EVAL = SCORE.replace('"bits_per_byte": 2.5', '"bits_per_byte": 2.5, "suite_missing": ["blimp_sample"]')


@pytest.mark.parametrize(
    ("file", "code", "activity", "reason"),
    [
        ("train", MISSING, "Training one step", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("cli/score", NO_LM_EVAL, "Scoring one row", "lm-eval is missing: pip install 'dailytrain[training]'"),
    ],
)
def test_self_test_without_a_package_fails_with_its_name(
    site: NodeApiServer, agent: InProcessAgent, file: str, code: str, activity: str, reason: str
) -> None:
    agent.start()
    finish = run_job(site, build_self_test(site, **{f"trainer/{file}.py": code})).end
    assert (finish.outcome, finish.cause) == ("failed", "infrastructure")
    assert finish.reason == f"{activity}: {reason}"


# --- replays ----------------------------------------------------------------------------------------------------------

Checkpoints = tuple[protocol.Checkpoint, protocol.Checkpoint]
SPY = """
import glob
found = glob.glob(str(out.parent.parent / "**" / "*"), recursive=True)
print("sees", [name for name in found if "claimed" in name], "of the", len(found) > 5)
claimed = out.parent.parent / "run" / "claimed-20" / "model.safetensors"
target = out / f"step-{until:08d}" / "model.safetensors"
target.unlink()
os.symlink(claimed, target)
"""


@pytest.fixture(scope="module")
def checkpoints(running_node: Node) -> tuple[protocol.Checkpoint, protocol.Checkpoint]:
    """Of a job of 20 steps: after 10, and after all."""
    first, second = run_job(running_node.site, build_training_job(running_node.site)).checkpoints
    return first, second


def replay(
    node: Node, start: protocol.Checkpoint | None, claimed: protocol.Checkpoint, config: dict[str, Any], **more: Any
) -> LeaseRecord:
    config = {"steps": 20, **config}
    order = protocol.ReplayOrder(dataset=build_dataset_pin(), config=config, start=start, claimed=claimed, **more)
    return run_job(node.site, build_job(node.site, order))


def build_check(step: int, exact: bool = True) -> dict[str, Any]:
    return {"step": step, "exact": exact, "deviation": 0.0 if exact else 1.5, "state_deviation": 0.0}


def build_result(*checks: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a replay; its last check is of the last step."""
    worst = max(check["deviation"] for check in checks)
    exact = all(check["exact"] for check in checks)
    return {"version": 1, "step": checks[-1]["step"], "exact": exact, "deviation": worst, "checks": [*checks]}


def test_replay_detects_a_different_stretch(running_node: Node, checkpoints: Checkpoints) -> None:
    site, (first, second) = running_node.site, checkpoints
    weights, *others = second.files
    forged = protocol.Checkpoint(step=20, files=(site.store_blob(b"others", weights.path), *others))
    assert replay(running_node, None, first, {}).end.result == build_result(build_check(10))
    told = "told {'clock': [], 'train': {}}\n"
    held = replay(running_node, None, second, {}, middle=first)
    assert held.end.result == build_result(build_check(10), build_check(20))
    assert held.log == f"replaying entry from step 0 to [10, 20], {told}"
    held = replay(running_node, first, forged, {}, first=first)
    assert held.end.result == build_result(build_check(10), build_check(20, exact=False))
    assert held.log == f"replaying entry from step 0 to [10], {told}replaying entry from step 10 to [20], {told}"


def test_replayed_code_cannot_see_the_claimed_weights(running_node: Node, checkpoints: Checkpoints) -> None:
    held = replay(running_node, *checkpoints, {"misbehave_again": SPY})
    assert (held.end.outcome, held.end.cause) == ("failed", "model"), held.log
    assert held.end.reason == "The replay left no weights to compare."
    assert "sees [] of the True" in held.log


# --- notebooks --------------------------------------------------------------------------------------------------------

FIRST = """
Path("model/deep").mkdir()
Path("model/weights.bin").write_text("one")
Path("model/deep/more.txt").write_text(",".join(sorted(os.listdir(os.environ["DAILYTRAIN_DATASET"]))))
os.symlink("/etc/passwd", "model/passwd")
os.mkfifo("model/pipe")
"""
SECOND = 'Path("model/weights.bin").write_text(Path("model/weights.bin").read_text() + " and two")'


NOTEBOOK_PATH = "notebooks/idea.ipynb"


def build_notebook_job(site: NodeApiServer, code: str, approved: str = "", **fields: Any) -> protocol.JobSpec:
    """Return a job whose entry has this notebook. `approved`: code of the approved one, if it differs."""
    notebook = site.store_blob((approved or code).encode(), NOTEBOOK_PATH)
    order = protocol.NotebookOrder(notebook=notebook, **{"seconds": 30, **fields})
    entry = site.store_blob(stdlib_release.build_tar({NOTEBOOK_PATH: code}), "entry.tar")
    return build_job(site, order, entry=False).model_copy(update={"entry": entry})


def test_notebook_part_finds_files_of_the_previous_part(running_node: Node) -> None:
    site = running_node.site
    held = run_job(site, build_notebook_job(site, FIRST, dataset=build_dataset_pin(), parts=2))
    assert held.end.outcome == "done", (held.end.reason, held.log)
    assert held.log == "part 1 of 2 baseline\n"
    assert held.end.result == {"version": 1, "cells": 2, "seconds": 0.5, "left": 2, "left_bytes": 41}
    sent = {file.path: site.blobs[file.sha256].decode() for file in held.end.files}
    assert sorted(sent) == ["executed.ipynb", "model/deep/more.txt", "model/weights.bin"]
    assert sent["model/deep/more.txt"] == "dev,manifest.json,tokenizer.json,train", "never the test split"
    left = [file for file in held.end.files if "model" in file.path]
    model = tuple(file.model_copy(update={"path": file.path.removeprefix("model/")}) for file in left)
    held = run_job(site, build_notebook_job(site, SECOND, model=model, part=2, parts=2))
    assert held.log == "part 2 of 2 baseline\n"
    sent = {file.path: site.blobs[file.sha256].decode() for file in held.end.files}
    assert sent["model/weights.bin"] == "one and two"


FAILURES = {
    'raise ValueError("Cell 2 ended with NameError.")': ("model", "Cell 2 ended with NameError.", True),
    "while True: pass": ("model", f"The notebook was ended. It ran longer than 3 seconds. {TIME_ADVICE}", True),
    'for i in range(600): Path(f"model/{i}").touch()': ("model", "It left more than 500 files in model/.", True),
    "raise SystemExit(1)": ("infrastructure", None, True),
    "print('changed')": (
        "infrastructure", "notebooks/idea.ipynb is not the notebook that was approved. Nothing was run.", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "code", [pytest.param(code, marks=pytest.mark.slow if "while" in code else []) for code in FAILURES]
)
def test_failed_notebook_has_a_reason_and_uploads_its_cells(running_node: Node, code: str) -> None:
    cause, reason, has_run = FAILURES[code]
    approved = "" if has_run else "print('good')"
    spec = build_notebook_job(running_node.site, code, approved, seconds=0.1 if "while" in code else 30)
    limits = LIMITS.model_copy(update={"wall_seconds": 3})  # enough to start and to write its first file
    finish = run_job(running_node.site, spec.model_copy(update={"limits": limits})).end
    assert (finish.outcome, finish.cause) == ("failed", cause)
    assert reason in (finish.reason, None)
    assert [file.path for file in finish.files] == (["executed.ipynb"] if has_run else [])


# --- a run that starts from another run's weights ---------------------------------------------------------------------


# --- files of the job, with a release that does not train ---


@pytest.fixture
def small_base(site: NodeApiServer) -> protocol.BaseWeights:
    files = (
        site.store_blob(b"w", "model.safetensors"),
        site.store_blob(b"o", "optimizer.pt"),
        site.store_blob(b"{}", "manifest.json"),
    )
    return protocol.BaseWeights(
        name="run-7", run=site.store_blob(b"{}", "run.json"), checkpoint=protocol.Checkpoint(step=40, files=files)
    )


def test_base_weights_come_without_optimizer_state(
    site: NodeApiServer, small_base: protocol.BaseWeights, agent: InProcessAgent
) -> None:
    agent.start()
    spec = build_training_job(site)
    held = run_job(site, spec.model_copy(update={"order": spec.order.model_copy(update={"base": small_base})}))
    config = read_json_blob(site, held.end.files[0])["config"]
    assert config["from"].endswith("/base/run-7/checkpoints/step-00000040")
    fetched = [request.rpartition("/")[2] for request in site.requests if request.startswith("GET")]
    assert small_base.run.sha256 in fetched
    names = {file.path for file in small_base.checkpoint.files if file.sha256 in fetched}
    assert names == {"model.safetensors", "manifest.json"}
    held = run_job(site, build_training_job(site, **{"from": "/etc"}))
    assert "from" not in read_json_blob(site, held.end.files[0])["config"], "an entry cannot choose them"


def test_replay_starts_from_the_same_base_weights(
    site: NodeApiServer, small_base: protocol.BaseWeights, agent: InProcessAgent
) -> None:
    agent.start()
    files = (site.store_blob(b"weights 10 " * 100, "model.safetensors"), site.store_blob(b"{}", "state.json"))
    claimed = protocol.Checkpoint(step=10, files=files)
    order = protocol.ReplayOrder(dataset=build_dataset_pin(), config={"steps": 20}, base=small_base, claimed=claimed)
    finish = run_job(site, build_job(site, order)).end
    assert finish.outcome == "done", finish.reason
    assert finish.result["exact"]
    assert any(small_base.run.sha256 in request for request in site.requests)
