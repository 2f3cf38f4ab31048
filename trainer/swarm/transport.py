"""Encrypted calls between peers. The only file that knows hivemind, of which it uses the libp2p daemon alone.

A call is one stream: a frame goes there, one or more come back. A frame is a JSON header and raw tensors, whose number
of bytes is held against a limit before any of them is read; nothing on the wire can be code. A peer's name is the hash
of its key and libp2p has verified it, so whoever calls is known for certain (`Route.admits` decides on it). Ending the
wait for a call ends it on the other side, too; a peer that dies ends its calls within milliseconds.

The daemon is a child of this process and ends with it, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.swarm.frames import (
    PIECE,
    CallFailed,
    Frame,
    Malformed,
    Refused,
    TooSlow,
    Unreachable,
    receive,
    receive_header,
    receive_tensors,
    send,
)

PROTOCOL = "dailytrain-swarm/1"
MEETING = 5.0
"""Seconds for a connection to be made."""
RELAY = "/libp2p/circuit/relay/0.2.0/hop"
RESERVE, RESERVED = bytes((2, 8, 0)), bytes((40, 100))
"""Of that protocol (circuit v2): a `HopMessage` of the type RESERVE, and how the answer to it ends if all is well."""
PLACE = 5.0
"""Seconds after which a machine that nobody can dial asks its relays for its place again: they may have begun anew."""
P2P_CODE = bytes.fromhex("a503")
"""What stands before a peer's name in a binary address: 421 as a varint."""
LINGER = 5.0
"""Seconds that a caller gets to hang up after it has been answered."""

log = logging.getLogger(__name__)


Handler = Callable[[str, Frame], Awaitable[Frame] | AsyncIterator[Frame]]


@dataclass(frozen=True)
class Route:
    """What is done about calls of one method."""

    handler: Handler
    """Gets the caller's name and its frame."""
    admits: Callable[[str], bool]
    """Whether this peer may call at all; asked before anything of the frame's tensors is read."""
    most_bytes: int
    """Of a request's tensors."""


@dataclass
class Transport:
    """This process among its peers."""

    folder: Path
    """Of this process only: sockets are in it while it runs, and the key that its name comes from."""
    peer: str = ""
    addresses: tuple[str, ...] = ()
    bytes_in: int = 0
    bytes_out: int = 0
    dialled: bool = True
    """Whether others can dial this machine."""
    _relays: list[str] = field(default_factory=list)
    _p2p: Any = None
    _sockets: Path | None = None
    _routes: dict[str, Route] = field(default_factory=dict)
    _known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _connected: set[str] = field(default_factory=set)
    _placed: float = float("-inf")
    """When places at relays were asked for."""

    async def start(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        announce: Iterable[str] = (),
        *,
        listen: bool = True,
        relays: Iterable[str] = (),
        serves_as_relay: bool = False,
    ) -> None:
        """Join the network. `announce` are the addresses that others should use, where they are not those listened on.

        `listen=False` is for a machine that nobody can dial: it is reached over connections that it made itself, or
        through `relays`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not in the folder itself: a socket's path may have about a hundred characters.
        place = Path(os.environ.get("SWARM_SOCKETS") or tempfile.gettempdir())
        sweep(place)
        self._sockets = Path(tempfile.mkdtemp(prefix=f"swarm-{os.getpid()}-", dir=place))
        relays = list(relays)
        create, failed = daemon(self._sockets)
        starting = create(
            host_maddrs=[f"/ip4/{host}/tcp/{port}"],
            announce_maddrs=list(announce) or None,
            identity_path=str(self.folder / "identity.key"),
            check_if_identity_free=False,
            no_listen=not listen,
            initial_peers=relays or None,
            trusted_relays=relays or None,
            use_relay=bool(relays) or serves_as_relay,
            use_auto_relay=bool(relays),
            relay_hop_limit=16 if serves_as_relay else 0,
            auto_nat=bool(relays) or serves_as_relay,
            # Said, not found out, which takes minutes: a relay has places at once, and others ask for one at once.
            force_reachability="public" if serves_as_relay else "private" if relays and not listen else None,
            nat_port_map=False,
            conn_manager=False,
            startup_timeout=60,
        )
        try:
            self._p2p = await starting
        except failed as error:
            raise Unreachable(f"cannot listen on {host}:{port}: {error}") from error
        self.peer = self._p2p.peer_id.to_base58()
        self._relays, self.dialled = relays, listen
        await self.refresh_addresses()

    async def refresh_addresses(self) -> None:
        """Ask the daemon where it can be reached. Who listens nowhere is reached through its relays, if it has any."""
        _, found = await self._p2p._client.identify()
        if not self.dialled:
            found = [f"{relay}/p2p-circuit" for relay in self._relays]
        self.addresses = tuple(f"{address}/p2p/{self.peer}" for address in found)

    async def serve(self, routes: Mapping[str, Route]) -> None:
        """Answer calls of these methods from now on."""
        first = not self._routes
        self._routes.update(routes)
        if first:
            await self._p2p.add_binary_stream_handler(PROTOCOL, self._answer)

    async def close(self) -> None:
        if self._p2p is not None:
            await self._p2p.shutdown()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def know(self, peer: str, addresses: Iterable[str]) -> None:
        """Remember where a peer can be reached."""
        addresses = tuple(addresses)
        if addresses and self._known.get(peer) != addresses:
            self._known[peer] = addresses
            self._connected.discard(peer)

    async def meet(self, peer: str) -> None:
        """Have a connection with a peer, so that it can call back: where nobody can dial this machine, or quietly not.

        One that is there already costs nothing.
        """
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure

        with contextlib.suppress(ControlFailure, OSError, EOFError, TimeoutError):
            async with asyncio.timeout(MEETING):
                await self._connect(PeerID.from_base58(peer), peer)

    async def keep_place(self) -> None:
        """Have a place at each relay, where nobody can dial this machine: those that listen nowhere either reach it by
        that. The daemon asks for one, too, but only after three minutes."""
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure

        async def ask(relay: str) -> None:
            try:
                async with asyncio.timeout(MEETING):
                    await self._reserve(relay.rpartition("/p2p/")[2])
            except (ControlFailure, OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError) as error:
                log.info("no place at %s: %s", relay, error)

        clock = asyncio.get_running_loop().time
        if self.dialled or clock() < self._placed + PLACE:
            return
        await asyncio.gather(*map(ask, self._relays))
        self._placed = clock()

    async def _reserve(self, relay: str) -> None:
        from hivemind.p2p import PeerID

        _, reader, writer = await self._p2p._client.stream_open(PeerID.from_base58(relay), (RELAY,))
        try:
            writer.write(RESERVE)
            await writer.drain()
            await reader.readuntil(RESERVED)
        finally:
            writer.close()

    async def _connect(self, name: Any, peer: str) -> None:
        from hivemind.utils.multiaddr import Multiaddr

        await self._p2p._client.connect(name, [Multiaddr(encoded(plain(a, peer))) for a in self._known.get(peer, ())])

    # --- calling ---------------------------------------------------------------------------------------------------

    async def call(self, peer: str, method: str, frame: Frame, timeout: float, most_bytes: int = 2**20) -> Frame:
        """Return the one frame that a peer answers. Raise a `CallFailed`."""
        try:
            async with asyncio.timeout(timeout), self._open(peer, method, frame) as reader:
                return await self._answered(reader, most_bytes)
        except TimeoutError:
            raise TooSlow(f"{method} took longer than {timeout:.1f} s") from None

    async def stream(
        self, peer: str, method: str, frame: Frame, timeout: float, most_bytes: int = 2**30
    ) -> AsyncIterator[Frame]:
        """Yield the frames that a peer answers, each of them within `timeout` seconds. Raise a `CallFailed`."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(timeout):
                    reader = await stack.enter_async_context(self._open(peer, method, frame))
                while True:
                    async with asyncio.timeout(timeout):
                        answer = await self._answered(reader, most_bytes)
                    if answer.body.get("end"):
                        return
                    yield answer
        except TimeoutError:
            raise TooSlow(f"{method} brought nothing for {timeout:.1f} s") from None

    @contextlib.asynccontextmanager
    async def _open(self, peer: str, method: str, frame: Frame) -> AsyncIterator[asyncio.StreamReader]:
        """Send a request. What is raised inside, a lost connection too, closes the stream; the other side sees it."""
        writer = None
        try:
            reader, writer = await self._dial(peer)
            self.bytes_out += await send(writer, {"method": method, "body": frame.body}, frame.tensors)
            yield reader
        except (OSError, EOFError) as error:
            self._connected.discard(peer)
            raise Unreachable(f"{method}: lost {short(peer)} ({type(error).__name__})") from error
        finally:
            if writer is not None:
                writer.close()

    async def _dial(self, peer: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure

        name = PeerID.from_base58(peer)
        for attempt in (1, 2):
            try:
                if peer not in self._connected and peer in self._known:
                    await self._connect(name, peer)
                _, reader, writer = await self._p2p.call_binary_stream_handler(name, PROTOCOL)
                self._connected.add(peer)
                return reader, writer
            except (ControlFailure, OSError, EOFError, ValueError) as error:
                fresh = peer not in self._connected
                self._connected.discard(peer)
                # An old connection may have been cut while the peer lives on: dial once more.
                if fresh or attempt == 2 or peer not in self._known:
                    raise Unreachable(f"no way to {short(peer)}: {error}") from error
        raise AssertionError

    async def _answered(self, reader: asyncio.StreamReader, most_bytes: int) -> Frame:
        header, tensors, size = await receive(reader, most_bytes)
        self.bytes_in += size
        if header.get("refused"):
            raise Refused(str(header["refused"])[:100], str(header.get("why", ""))[:1000])
        if not isinstance(header.get("body"), dict):
            raise Malformed("an answer without a body")
        return Frame(header["body"], tensors)

    # --- answering -------------------------------------------------------------------------------------------------

    async def _answer(self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = info.peer_id.to_base58()
        working = asyncio.ensure_future(self._work(caller, reader, writer))
        try:
            await working
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        except Malformed as error:
            log.warning("%s sent what is not a call: %s", short(caller), error)
            with contextlib.suppress(OSError):
                await send(writer, {"refused": "malformed", "why": str(error)})
                await linger(reader)
        finally:
            working.cancel()
            writer.close()

    async def _work(self, caller: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await receive_header(reader)
        route = self._routes.get(str(header.get("method")))
        if route is None or not route.admits(caller):
            await send(writer, {"refused": "stranger" if route else "unknown", "why": "not one of us, or no such call"})
            await linger(reader)
            return
        if not isinstance(header.get("body"), dict):
            raise Malformed("a call without a body")
        tensors, size = await receive_tensors(reader, header, route.most_bytes)
        self.bytes_in += size
        answering = asyncio.ensure_future(self._reply(route, caller, Frame(header["body"], tensors), writer))
        gone = asyncio.ensure_future(reader.read(1))  # the caller sends no more: what comes is the end of the stream
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done() and answering.exception() is None:
                await asyncio.wait({gone}, timeout=LINGER)  # as in `linger`
        finally:
            answering.cancel()
            gone.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    async def _reply(self, route: Route, caller: str, frame: Frame, writer: asyncio.StreamWriter) -> None:
        try:
            answer = route.handler(caller, frame)
            if isinstance(answer, AsyncIterator):
                async for part in answer:
                    self.bytes_out += await send(writer, {"body": part.body}, part.tensors)
                await send(writer, {"body": {"end": True}})
            else:
                done = await answer
                self.bytes_out += await send(writer, {"body": done.body}, done.tensors)
        except Refused as error:
            await send(writer, {"refused": error.code, "why": error.message})
        except (OSError, EOFError):
            raise
        except Malformed as error:
            await send(writer, {"refused": "malformed", "why": str(error)})
        except CallFailed as error:
            await send(writer, {"refused": "below", "why": str(error)})
        except Exception as error:
            log.exception("a call of %s failed", short(caller))
            await send(writer, {"refused": "failed", "why": f"{type(error).__name__}: {error}"})


def set_environment() -> None:
    """Say how hivemind should be; it reads that when it is imported."""
    os.environ["USE_LEGACY_BFLOAT16"] = "0"  # bf16 goes as two bytes, not as four
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "ERROR")  # it is noisy when peers go


def daemon(sockets: Path) -> tuple[Any, type[Exception]]:
    """Return what starts hivemind's daemon with its sockets in this folder, and what that raises if it cannot.

    hivemind is imported here, after the settings that must be there before.
    """
    set_environment()
    from hivemind.p2p import P2P, P2PDaemonError

    return type("Daemon", (P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{sockets}/"}).create, P2PDaemonError


async def linger(reader: asyncio.StreamReader) -> None:
    """Let the caller hang up first: closing with something unread would take the answer with it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            while await reader.read(PIECE):
                pass


def sweep(place: Path) -> None:
    """Delete the sockets of processes that were killed: whose folder is named after one that is no more."""
    for folder in place.glob("swarm-*-*"):
        number = folder.name.split("-")[1]
        with contextlib.suppress(OSError):  # another process sweeps, too
            if number.isdigit() and not Path(f"/proc/{number}").exists() and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder)


def short(peer: str) -> str:
    """Return the end of a peer's name, which tells peers apart well enough for a person."""
    return peer[-6:]


def plain(address: str, peer: str) -> str:
    """Return an address without the peer's own name at its end, as libp2p's connect wants it."""
    return address.removesuffix(f"/p2p/{peer}")


def encoded(address: str) -> bytes:
    """Return an address as libp2p's daemon reads it.

    Not left to hivemind: a peer's name within an address, as one through a relay has, it writes as a CID of version 1,
    which the daemon takes for a broken hash.
    """
    from hivemind.p2p import PeerID
    from hivemind.utils.multiaddr import Multiaddr

    before, name, behind = address.partition("/p2p/")
    if not name:
        return bytes(Multiaddr(before).to_bytes())
    peer, _, rest = behind.partition("/")
    key = PeerID.from_base58(peer).to_bytes()
    return (
        bytes(Multiaddr(before).to_bytes())
        + P2P_CODE
        + bytes([len(key)])
        + key
        + (encoded(f"/{rest}") if rest else b"")
    )
