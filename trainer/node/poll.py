"""A lane's loop: ask for work, do it, leave nothing behind, ask again. The server sets the pace."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from trainer import protocol
from trainer.node.client import TIMEOUT_SECONDS, GaveUpError, sleep_unless
from trainer.node.console import say
from trainer.node.slot_cleanup import SlotCleanup
from trainer.node.stop_signal import StopLevel

if TYPE_CHECKING:
    from trainer.node.agent import Agent
    from trainer.node.slot_context import SlotContext

POLL_SECONDS = 20.0
"""How long the server may hold the question open."""
LEAST_SECONDS = 1.0
"""Between two questions when the server answered "nothing" at once and named no time."""
TROUBLE_SECONDS = 60.0
"""The longest pause after jobs that this node could not work on."""


class PollLoop:
    def __init__(self, agent: Agent, place: SlotContext, abandoned: tuple[int, ...], once: bool) -> None:
        """`abandoned`: leases of an agent before us, told with the first question; `once`: end after one job."""
        self.error: Exception | None = None
        """What ended it: the server's no to the whole node, or a fault of ours."""
        self.working = False
        """A job is under way: whoever ends the agent waits for it."""
        self._agent = agent
        self._place = place
        self._abandoned = abandoned
        self._once = once
        self._idle = False
        self._trouble = ""
        self._reset = SlotCleanup(place.home, place.lane, agent.vitals)
        self._thread = threading.Thread(target=self._run, name=str(place.lane), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._serve()
        except GaveUpError:
            return
        except Exception as error:  # told in the main thread
            self.error = error

    def _serve(self) -> None:
        failures = 0
        while not self._over():
            action = self._ask()
            if action.action == "stop":
                self._say(f"The server asks this node to stop. {action.reason}".rstrip())
                return
            if action.lanes is not None and action.lanes != self._place.lane.lanes:
                self._agent.regroup(action.lanes)
                return
            if action.lease is None:
                self._tell_idle(action)
                self._rest(action.wait_seconds * random.uniform(1, 1.25))
                continue
            failures = 0 if self._work(action.lease) else failures + 1
            if self._once:
                return
            if failures:
                self._rest(random.uniform(0.5, 1) * min(TROUBLE_SECONDS, 2.0 ** (failures - 1)))

    def _over(self) -> bool:
        return self._stopped() or self._agent.regrouping

    def _stopped(self) -> bool:
        return self._agent.sponsor.stop > StopLevel.NONE

    def _work(self, lease: protocol.Lease) -> bool:
        from trainer.node.job import run_job

        self.working = True
        try:
            self._place.lane.settle()
            self._reset.begin(lease.lease)
            went_well = run_job(self._place, lease, self._agent.client, self._agent.sponsor)
            self._look_out(self._reset.settle(self._stopped))
            return went_well
        finally:
            self.working = False

    def _ask(self) -> protocol.PollReply:
        agent, lane = self._agent, self._place.lane
        agent.vitals.watch(lane.number, lane.uuids, running=False)
        self._look_out(self._reset.left_over())
        question = protocol.Poll(
            hardware=agent.hardware(),
            wait_seconds=POLL_SECONDS,
            abandoned=self._abandoned,
            lane=lane.number,
            lanes=lane.lanes,
            lanes_wished=agent.wished,
            health=agent.vitals.health(self._trouble),
        )
        asked = time.monotonic()
        action = agent.patiently(
            lambda: agent.client.post("/poll", question, protocol.PollReply, patience=POLL_SECONDS + TIMEOUT_SECONDS)
        )
        self._abandoned = ()
        if action.action != "job" and action.wait_seconds == 0 and time.monotonic() - asked < LEAST_SECONDS:
            self._rest(LEAST_SECONDS * random.uniform(0.5, 1))
        return action

    def _look_out(self, trouble: str) -> None:
        """Note what is in the way of the next job, and tell the sponsor when it changes."""
        if trouble and trouble != self._trouble:
            self._say(trouble, "bold yellow")
        elif self._trouble and not trouble:
            self._say("That is cleared away. Going on.")
        self._trouble = trouble

    def _tell_idle(self, action: protocol.PollReply) -> None:
        if action.action == "pause":
            self._say(f"Paused. {action.reason}")
        elif not self._idle and not self._trouble:
            self._say(f"Waiting for work. {action.reason}".rstrip())
        self._idle = action.action == "idle"

    def _say(self, sentence: str, style: str = "") -> None:
        lane = self._place.lane
        say(sentence if lane.lanes == 1 else f"{lane}: {sentence}", style)

    def _rest(self, seconds: float) -> None:
        sleep_unless(seconds, self._over)
