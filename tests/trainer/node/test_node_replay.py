"""A node replays a stretch: the entry's code sees the first checkpoint, and never the claimed one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.agent_process import Node, build_dataset_pin, build_job, build_training_job, wait_until_finished
from tests.support.node_api_server import NodeApiServer
from trainer import protocol

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("requires_sandbox")]
SPY = """
import glob
found = glob.glob(str(out.parent.parent / "**" / "*"), recursive=True)
print("sees", [name for name in found if "claimed" in name], "of the", len(found) > 5)
claimed = out.parent.parent / "run" / "claimed-20" / "model.safetensors"
target = out / f"step-{until:08d}" / "model.safetensors"
target.unlink()
os.symlink(claimed, target)
"""


def train_two_checkpoints(site: NodeApiServer, node: Node) -> tuple[protocol.Checkpoint, protocol.Checkpoint]:
    """Train a job and return its two checkpoints."""
    lease = site.queue_job(build_training_job(site))
    node.start()
    first, second = wait_until_finished(site, lease).checkpoints
    return first, second


def queue_replay(
    site: NodeApiServer,
    start: protocol.Checkpoint | None,
    claimed: protocol.Checkpoint,
    middle: protocol.Checkpoint | None = None,
    first: protocol.Checkpoint | None = None,
    **config: object,
) -> int:
    order = protocol.ReplayOrder(
        dataset=build_dataset_pin(),
        config={"steps": 20, **config},
        start=start,
        middle=middle,
        first=first,
        claimed=claimed,
    )
    return site.queue_job(build_job(site, order))


def build_check(step: int, exact: bool = True) -> dict[str, Any]:
    return {"step": step, "exact": exact, "deviation": 0.0 if exact else 1.5, "state_deviation": 0.0}


def build_result(*checks: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a replay; its last check is of the last step."""
    worst = max(check["deviation"] for check in checks)
    exact = all(check["exact"] for check in checks)
    return {"version": 1, "step": checks[-1]["step"], "exact": exact, "deviation": worst, "checks": [*checks]}


def test_replay_detects_a_different_stretch(site: NodeApiServer, node: Node) -> None:
    first, second = train_two_checkpoints(site, node)
    forged = tuple(
        site.store_blob(b"others", file.path) if file.path == "model.safetensors" else file for file in second.files
    )
    leases = [
        queue_replay(site, None, first),
        queue_replay(site, None, second, middle=first),
        queue_replay(site, first, protocol.Checkpoint(step=20, files=forged), first=first),
    ]
    finishes = [wait_until_finished(site, lease).finish for lease in leases]
    assert [finish and finish.result for finish in finishes] == [
        build_result(build_check(10)),
        build_result(build_check(10), build_check(20)),
        build_result(build_check(10), build_check(20, exact=False)),
    ]
    told = "told {'clock': [], 'train': {}}\n"
    assert site.leases[leases[1]].log == f"replaying entry from step 0 to [10, 20], {told}"
    assert site.leases[leases[2]].log == (
        f"replaying entry from step 0 to [10], {told}replaying entry from step 10 to [20], {told}"
    )


def test_replayed_code_cannot_see_the_claimed_weights(site: NodeApiServer, node: Node) -> None:
    first, second = train_two_checkpoints(site, node)
    held = wait_until_finished(site, queue_replay(site, first, second, misbehave_again=SPY))
    assert (held.end.outcome, held.end.cause) == ("failed", "model"), held.log
    assert held.end.reason == "The replay left no weights to compare."
    assert "sees [] of the True" in held.log


def test_replay_of_seconds_without_recorded_times_differs(site: NodeApiServer, node: Node) -> None:
    first, second = train_two_checkpoints(site, node)
    finish = wait_until_finished(site, queue_replay(site, first, second, budget="1h")).end
    unproven = {"step": 20, "exact": False, "deviation": 1e9, "state_deviation": 1e9}
    assert finish.result == build_result(unproven)


def test_replay_of_a_failing_model_blames_the_model(site: NodeApiServer, node: Node) -> None:
    first, second = train_two_checkpoints(site, node)
    finish = wait_until_finished(site, queue_replay(site, first, second, misbehave_again="raise SystemExit(3)")).end
    assert (finish.outcome, finish.cause) == ("failed", "model")
    finish = wait_until_finished(site, queue_replay(site, first, second, misbehave_again="raise SystemExit(1)")).end
    assert (finish.outcome, finish.cause) == ("failed", "infrastructure")
