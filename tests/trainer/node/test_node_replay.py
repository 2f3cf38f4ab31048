"""A node replays a stretch: the entry's code sees the first checkpoint, and never the claimed one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.agent_process import Node, build_dataset_pin, build_job, build_training_job, run_job
from tests.support.node_api_server import LeaseRecord
from trainer import protocol

pytestmark = pytest.mark.processes

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


def test_replay_of_seconds_without_recorded_times_differs(running_node: Node, checkpoints: Checkpoints) -> None:
    unproven = {"step": 20, "exact": False, "deviation": 1e9, "state_deviation": 1e9}
    assert replay(running_node, *checkpoints, {"budget": "1h"}).end.result == build_result(unproven)


@pytest.mark.parametrize(("code", "cause"), [(3, "model"), (1, "infrastructure")])
def test_replay_that_exits_blames_by_its_code(
    running_node: Node, checkpoints: Checkpoints, code: int, cause: str
) -> None:
    finish = replay(running_node, *checkpoints, {"misbehave_again": f"raise SystemExit({code})"}).end
    assert (finish.outcome, finish.cause) == ("failed", cause)
