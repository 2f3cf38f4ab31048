"""A node's self-test by the commands of a release. tests/scheduler/test_self_test_on_node.py runs the site's own."""

from __future__ import annotations

import pytest

from tests.support import stdlib_release
from tests.support.agent_process import Node, build_job, build_training_job, wait_until_finished
from tests.support.node_api_server import NodeApiServer
from trainer import protocol

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]

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


def test_self_test_without_lm_eval_fails(site: NodeApiServer, node: Node) -> None:
    score = SCORE.replace('"bits_per_byte": 2.5', '"bits_per_byte": 2.5, "suite_missing": ["blimp_sample"]')
    message = finish(site, node, **{"trainer/cli/score.py": score})
    assert (message.outcome, message.cause) == ("failed", "infrastructure")
    assert message.reason == "Scoring one row: lm-eval is missing: pip install 'dailytrain[training]'"


def test_agent_that_runs_one_job_does_not_count_its_self_test(site: NodeApiServer, node: Node) -> None:
    leases = [queue_self_test(site), site.queue_job(build_training_job(site))]
    node.start("--once")
    for lease in leases:
        assert wait_until_finished(site, lease).finish is not None
    assert node.wait() == 0
