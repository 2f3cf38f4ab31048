"""Jobs of the site's own code: smoke tests, probes of the speed and self-tests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import stdlib_release
from tests.support.agent_process import Node, build_job, build_training_job, run_job
from tests.support.in_process_agent import InProcessAgent
from tests.support.node_api_server import NodeApiServer
from trainer import protocol
from trainer.node.job_handlers import smoke
from trainer.node.outcome import JobFailedError

pytestmark = pytest.mark.processes


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


def test_smoke_job_with_docker_raises() -> None:
    held = SimpleNamespace(context=SimpleNamespace(sandbox=SimpleNamespace(name="docker")))
    with pytest.raises(JobFailedError, match="needs bubblewrap"):
        smoke.get_sandbox_name(held)  # type: ignore[arg-type]


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
        ("cli/score", MISSING, "Scoring one row", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("cli/prepare", MISSING, "Preparing a small text", "ModuleNotFoundError: No module named 'no_such_package'"),
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


def test_agent_that_runs_one_job_does_not_count_its_self_test(site: NodeApiServer, node: Node) -> None:
    leases = [site.queue_job(build_self_test(site)), site.queue_job(build_training_job(site))]
    assert node.run("--once") == 0
    assert all(site.leases[lease].finish for lease in leases)
