"""A node executes smoke tests of the release's code in its sandbox. An entry's mistake is a result, not a failure."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.agent_process import Node, build_job, wait_until_finished
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
