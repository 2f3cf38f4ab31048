"""Jobs of the site's own code: smoke tests, probes of the speed and self-tests."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support import stdlib_release
from tests.support.agent_process import Node, build_job, build_training_job, wait_until_finished
from tests.support.node_api_server import NodeApiServer
from trainer import protocol
from trainer.node.job_handlers import smoke
from trainer.node.outcome import JobFailedError

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]


def queue_smoke_test(site: NodeApiServer, **config: object) -> int:
    order = protocol.SmokeOrder(
        config={"arch": "waves", **config}, tokenizer="bpe:256", vocabulary_size=256, memory_bytes=8e10
    )
    return site.queue_job(build_job(site, order))


def test_smoke_job_runs_the_sites_code(site: NodeApiServer, node: Node) -> None:
    leases = [
        queue_smoke_test(site),
        queue_smoke_test(site, fails=True),
        queue_smoke_test(site, breaks=True),
        queue_smoke_test(site, nonsense={"passed": 7}),
    ]
    node.start()
    sound, failing, broken, nonsense = (wait_until_finished(site, lease).finish for lease in leases)
    assert sound is not None
    assert (sound.outcome, sound.result["passed"], sound.result["parameters"]) == ("done", True, 7.0)
    assert sound.result["sentence"] == (
        "waves: baseline smokes NAME = \"entry\", {'--sandbox': 'bubblewrap', '--tokenizer': 'bpe:256', "
        "'--memory-bytes': '80000000000.0', '--peak': None}"
    )
    assert failing is not None
    assert (failing.outcome, failing.result["passed"]) == ("done", False)
    assert broken is not None
    assert (broken.outcome, broken.cause) == ("failed", "infrastructure")
    assert nonsense is not None
    assert nonsense.reason == "The smoke test's result is malformed."
    assert site.leases[leases[0]].log == "smoking\n"
    assert [file.path for file in sound.files] == [f"graph/{name}" for name in protocol.GRAPH_FILES]


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


def test_probe_readings_ignore_the_trainings_own_claim(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, probe=protocol.ProbeSpec(seconds=1), misbehave=LIE))
    unasked = site.queue_job(build_training_job(site, misbehave=LIE))
    node.start()
    held = wait_until_finished(site, lease)
    assert held.finish is not None
    assert held.finish.outcome == "done", held.finish.reason + held.log
    assert held.finish.result["probes"] == {"version": 1, "before": READING, "after": READING}
    assert held.log == "probing\ntraining entry from step 0\nprobing\n"
    finish = wait_until_finished(site, unasked).finish
    assert finish is not None
    assert finish.result["probes"] is None


def test_failing_probe_does_not_stop_the_training(site: NodeApiServer, node: Node) -> None:
    lease = site.queue_job(build_training_job(site, probe=protocol.ProbeSpec(seconds=1, width=128)))
    node.start()
    finish = wait_until_finished(site, lease).finish
    assert finish is not None
    assert finish.outcome == "done"
    assert finish.result["probes"] == {"version": 1, "before": None, "after": None}


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


def queue_self_test(site: NodeApiServer, **files: str) -> int:
    sources = {**stdlib_release.FILES, "trainer/train.py": TRAIN, "trainer/cli/score.py": SCORE, **files}
    spec = build_job(site, protocol.SelfTestOrder(), entry=False)
    release = site.store_blob(stdlib_release.build_tar(sources), "release.tar")
    return site.queue_job(spec.model_copy(update={"release": release}))


def finish(site: NodeApiServer, node: Node, **files: str) -> protocol.FinishLease:
    lease = queue_self_test(site, **files)
    node.start()
    finished = wait_until_finished(site, lease).finish
    assert finished is not None
    return finished


def test_self_test_reports_what_it_measured(site: NodeApiServer, node: Node) -> None:
    message = finish(site, node)
    assert message.outcome == "done", message.reason
    result = protocol.SelfTestResult.model_validate(message.result)
    assert (result.sandbox, result.device, result.loss, result.bits_per_byte) == ("bubblewrap", "cpu", 6.0, 2.5)


@pytest.mark.parametrize(
    ("file", "activity"),
    [
        ("trainer/train.py", "Training one step"),
        ("trainer/cli/score.py", "Scoring one row"),
        ("trainer/cli/prepare.py", "Preparing a small text"),
    ],
)
def test_self_test_without_a_package_fails_with_its_name(
    site: NodeApiServer, node: Node, file: str, activity: str
) -> None:
    message = finish(site, node, **{file: "import no_such_package"})
    assert (message.outcome, message.cause) == ("failed", "infrastructure")
    assert message.reason == f"{activity}: ModuleNotFoundError: No module named 'no_such_package'"


def test_agent_that_runs_one_job_does_not_count_its_self_test(site: NodeApiServer, node: Node) -> None:
    leases = [queue_self_test(site), site.queue_job(build_training_job(site))]
    node.start("--once")
    for lease in leases:
        assert wait_until_finished(site, lease).finish is not None
    assert node.wait() == 0
