"""Where volunteers take packets and hand them in, a few at a time: `POST /api/node/v1/leases/ID/packets/take|submit`.

Reading a batch is work for a processor, and hundreds of threads that all want it only get into each other's way. So a
few do it (`clerks`), others than those who answer nodes that ask for work. What is not in order is answered where all
other calls of nodes are, by `node_api`, which says why; a batch that was half taken in is not: it counts whole or not.
"""

from __future__ import annotations

import re
from functools import partial

from scheduler.campaigns import assignment, submission
from scheduler.node_api import poll_endpoint, routes
from scheduler.node_api.poll_endpoint import Application, Receive, Scope, Send
from scheduler.node_api.poll_threads import Clerks
from trainer import protocol

ADDRESS = re.compile(r"/api/node/v1/leases/(\d{1,18})/packets/(take|submit)")
AT_ONCE = 3
"""Of each process: one waits for the database while another reads."""
SORTERS = Clerks(AT_ONCE)


class PacketDesk:
    def __init__(self, otherwise: Application) -> None:
        """`otherwise`: what answers a message that is not in order."""
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = ADDRESS.fullmatch(scope["path"])
        assert found
        lease, what = found.groups()

        async def asked(token: str, body: bytes) -> protocol.Message:
            return await SORTERS.do(partial(hear, token, int(lease), what, body))

        await poll_endpoint.in_order(asked, self._otherwise, scope, receive, send)


def hear(token: str, lease_id: int, what: str, body: bytes) -> protocol.Message:
    """Do what a message asks for, in a thread."""
    lease = routes.holder(token, lease_id)
    said = poll_endpoint.said(body)
    if what == "take":
        return assignment.take(lease, protocol.TakePackets.model_validate(said))
    return submission.submit(lease, protocol.SubmitPackets.model_validate(said))


def rest() -> None:
    """Let the threads and their connections go; the next message has new ones."""
    SORTERS.rest()
