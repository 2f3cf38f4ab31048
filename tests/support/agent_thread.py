"""An agent of a node in a thread of the test's process, which leaves no thread behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from tests.support.waits import WAIT_SECONDS
from trainer.node.agent import Agent, AgentStoppedError
from trainer.node.identity import Identity
from trainer.node.slot_loops import PollLoop, run_slots


class AgentThread:
    """Joins a site by `join()`, and works until it is stopped or fails."""

    def __init__(self, agent: Agent, join: Callable[[], Identity]) -> None:
        self.agent = agent
        self.ended: BaseException | None = None
        self._join = join
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            run_slots(self.agent, self._join(), once=False)
        except (AgentStoppedError, Exception) as error:
            self.ended = error

    def stop(self) -> None:
        """Stop the agent as Ctrl-C does, and wait for all its threads: one of its polls may still be open."""
        self.agent.sponsor.request_stop()
        if self._thread.ident is not None:
            self._thread.join(WAIT_SECONDS)
        for thread in threading.enumerate():
            if isinstance(thread, PollLoop) and thread.agent is self.agent:
                thread.join(WAIT_SECONDS)
                assert not thread.is_alive(), "a slot did not end"
        self.agent.client.close()
