"""Encrypted calls between peers. The adapter of hivemind, of which only the libp2p daemon is used.

A call is one stream: one frame goes out, one or more come back (`trainer.swarm.frames`). A peer's name is the hash of
its key, which libp2p verifies, so callers are authenticated (`Route.admits` authorizes them). Canceling a call cancels
it on the other side too; the death of a peer ends its calls within milliseconds.

The daemon is a child of this process and ends with it in any case. This file is the only one that may use hivemind,
including its private `P2P._client`, which has no public counterpart for identify, connect and stream_open.
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
    CHUNK_BYTES,
    CallError,
    CallRefusedError,
    CallTimeoutError,
    MalformedFrameError,
    PeerUnreachableError,
    RpcFrame,
    receive_header,
    receive_tensors,
    send_frame,
)

PROTOCOL = "dailytrain-swarm/1"
CONNECT_SECONDS = 5.0  # Timeout of a connection attempt
RELAY = "/libp2p/circuit/relay/0.2.0/hop"
RESERVE, RESERVED = bytes((2, 8, 0)), bytes((40, 100))
"""Bytes of circuit relay v2: a `HopMessage` of type RESERVE, and the end of a successful reply."""
RESERVATION_SECONDS = 5.0
"""Interval in which a machine that cannot be dialed renews its relay reservations: a relay may have restarted."""
P2P_CODE = bytes.fromhex("a503")  # Prefix of a peer's name in a binary address: 421 as a varint
HANGUP_SECONDS = 5.0  # Time that a caller gets to close the stream after the reply

SOCKET_FOLDER_VARIABLE = "SWARM_SOCKETS"
"""Environment variable with the folder for sockets; default: the temporary folder."""
PEER_SUFFIX = 8  # Characters at the end of a peer's name that identify it in metrics

log = logging.getLogger(__name__)

Handler = Callable[[str, RpcFrame], Awaitable[RpcFrame] | AsyncIterator[RpcFrame]]


@dataclass(frozen=True)
class Route:
    """The handler of one method."""

    handler: Handler  # (caller's name, frame) -> one frame, or several
    admits: Callable[[str], bool]  # Whether this peer may call. Checked before any tensor is read.
    max_bytes: int  # Limit of a request's tensors


@dataclass
class Transport:
    """This process's connection to the network."""

    folder: Path  # Folder of this process only, with the key that its name derives from
    peer: str = ""
    addresses: tuple[str, ...] = ()
    bytes_in: int = 0
    bytes_out: int = 0
    is_dialable: bool = True  # Whether other peers can dial this machine
    _relays: list[str] = field(default_factory=list)
    _p2p: Any = None
    _sockets: Path | None = None
    _routes: dict[str, Route] = field(default_factory=dict)
    _known: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _connected: set[str] = field(default_factory=set)
    _reserved_at: float = float("-inf")  # Time of the last relay reservations

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
        """Join the network. `announce`: addresses for other peers, if they differ from the ones listened on.

        `listen=False` is for a machine that cannot be dialed: peers reach it over connections that it opened, or
        through `relays`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not in `folder`: a socket's path is limited to about a hundred characters.
        parent = Path(os.environ.get(SOCKET_FOLDER_VARIABLE) or tempfile.gettempdir())
        remove_stale_sockets(parent)
        self._sockets = Path(tempfile.mkdtemp(prefix=f"swarm-{os.getpid()}-", dir=parent))
        relays = list(relays)
        create, daemon_error = build_daemon_factory(self._sockets)
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
            # Declared, because detection takes minutes: relays accept and machines request reservations at once.
            force_reachability="public" if serves_as_relay else "private" if relays and not listen else None,
            nat_port_map=False,
            conn_manager=False,
            startup_timeout=60,
        )
        try:
            self._p2p = await starting
        except daemon_error as error:
            raise PeerUnreachableError(f"cannot listen on {host}:{port}: {error}") from error
        self.peer = self._p2p.peer_id.to_base58()
        self._relays, self.is_dialable = relays, listen
        await self.refresh_addresses()

    async def refresh_addresses(self) -> None:
        """Update `addresses` from the daemon. A machine that does not listen is reached through its relays, if any."""
        _, addresses = await self._p2p._client.identify()
        if not self.is_dialable:
            addresses = [f"{relay}/p2p-circuit" for relay in self._relays]
        self.addresses = tuple(f"{address}/p2p/{self.peer}" for address in addresses)

    async def serve(self, routes: Mapping[str, Route]) -> None:
        """Answer calls of these methods. Call it once."""
        self._routes = dict(routes)
        await self._p2p.add_binary_stream_handler(PROTOCOL, self._serve_call)

    async def close(self) -> None:
        if self._p2p is not None:
            await self._p2p.shutdown()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    def add_addresses(self, peer: str, addresses: Iterable[str]) -> None:
        """Store the addresses of a peer."""
        addresses = tuple(addresses)
        if addresses and self._known.get(peer) != addresses:
            self._known[peer] = addresses
            self._connected.discard(peer)

    async def connect_to(self, peer: str) -> None:
        """Connect to a peer, so that it can call back if this machine cannot be dialed. Errors are ignored.

        An existing connection is reused.
        """
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure

        with contextlib.suppress(ControlFailure, OSError, EOFError, TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._connect(PeerID.from_base58(peer), peer)

    async def renew_relay_reservations(self) -> None:
        """Reserve a slot at each relay if this machine cannot be dialed, so that others like it can reach it.

        The daemon does this too, but only after three minutes."""
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure

        async def reserve(relay: str) -> None:
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._reserve(relay.rpartition("/p2p/")[2])
            except (ControlFailure, OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError) as error:
                log.info("no reservation at %s: %s", relay, error)

        if self.is_dialable or get_loop_time() < self._reserved_at + RESERVATION_SECONDS:
            return
        await asyncio.gather(*map(reserve, self._relays))
        self._reserved_at = get_loop_time()

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
        """Dial a peer's known addresses. libp2p expects them without the peer's name at the end."""
        from hivemind.utils.multiaddr import Multiaddr

        addresses = [address.removesuffix(f"/p2p/{peer}") for address in self._known.get(peer, ())]
        await self._p2p._client.connect(name, [Multiaddr(encode_address(address)) for address in addresses])

    # --- calling ---------------------------------------------------------------------------------------------------

    async def call(self, peer: str, method: str, frame: RpcFrame, timeout: float, max_bytes: int = 2**20) -> RpcFrame:
        """Return a peer's reply, one frame. Raise `CallError`."""
        try:
            async with asyncio.timeout(timeout), self._open(peer, method, frame) as reader:
                return await self._read_reply(reader, max_bytes)
        except TimeoutError:
            raise CallTimeoutError(f"{method} took longer than {timeout:.1f} s") from None

    async def stream(
        self, peer: str, method: str, frame: RpcFrame, timeout: float, max_bytes: int = 2**30
    ) -> AsyncIterator[RpcFrame]:
        """Yield the frames of a peer's reply, each within `timeout` seconds. Raise `CallError`."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(timeout):
                    reader = await stack.enter_async_context(self._open(peer, method, frame))
                while True:
                    async with asyncio.timeout(timeout):
                        reply = await self._read_reply(reader, max_bytes)
                    if reply.body.get("end"):
                        return
                    yield reply
        except TimeoutError:
            raise CallTimeoutError(f"{method} sent nothing for {timeout:.1f} s") from None

    @contextlib.asynccontextmanager
    async def _open(self, peer: str, method: str, frame: RpcFrame) -> AsyncIterator[asyncio.StreamReader]:
        """Send a request and yield the stream of the reply. Any error closes it, which cancels the call."""
        writer = None
        try:
            reader, writer = await self._dial(peer)
            self.bytes_out += await send_frame(writer, {"method": method, "body": frame.body}, frame.tensors)
            yield reader
        except (OSError, EOFError) as error:
            self._connected.discard(peer)
            raise PeerUnreachableError(f"{method}: lost {shorten(peer)} ({type(error).__name__})") from error
        finally:
            if writer is not None:
                writer.close()

    async def _dial(self, peer: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure

        for attempt in (1, 2):
            try:
                name = PeerID.from_base58(peer)
                if peer not in self._connected and peer in self._known:
                    await self._connect(name, peer)
                _, reader, writer = await self._p2p.call_binary_stream_handler(name, PROTOCOL)
                self._connected.add(peer)
                return reader, writer
            except (ControlFailure, OSError, EOFError, ValueError) as error:
                is_new = peer not in self._connected
                self._connected.discard(peer)
                # An old connection may have broken while the peer is alive: dial once more.
                if is_new or attempt == 2 or peer not in self._known:
                    raise PeerUnreachableError(f"cannot connect to {shorten(peer)}: {error}") from error
        raise AssertionError

    async def _read_reply(self, reader: asyncio.StreamReader, max_bytes: int) -> RpcFrame:
        header = await receive_header(reader)
        tensors, size = await receive_tensors(reader, header, max_bytes)
        self.bytes_in += size
        if header.get("refused"):
            raise CallRefusedError(str(header["refused"])[:100], str(header.get("why", ""))[:1000])
        if not isinstance(header.get("body"), dict):
            raise MalformedFrameError("a reply without a body")
        return RpcFrame(header["body"], tensors)

    # --- serving --------------------------------------------------------------------------------------------------

    async def _serve_call(self, info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = info.peer_id.to_base58()
        task = asyncio.ensure_future(self._handle_call(caller, reader, writer))
        try:
            await task
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        except MalformedFrameError as error:
            log.warning("%s sent an invalid call: %s", shorten(caller), error)
            with contextlib.suppress(OSError):
                await send_frame(writer, {"refused": "malformed", "why": str(error)})
                await wait_for_hangup(reader)
        finally:
            task.cancel()
            writer.close()

    async def _handle_call(self, caller: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await receive_header(reader)
        route = self._routes.get(str(header.get("method")))
        if route is None or not route.admits(caller):
            code = "not_member" if route else "unknown"
            await send_frame(writer, {"refused": code, "why": "not a member, or no such method"})
            await wait_for_hangup(reader)
            return
        if not isinstance(header.get("body"), dict):
            raise MalformedFrameError("a call without a body")
        tensors, size = await receive_tensors(reader, header, route.max_bytes)
        self.bytes_in += size
        serving = asyncio.ensure_future(self._reply(route, caller, RpcFrame(header["body"], tensors), writer))
        # The caller sends nothing more, so this returns at the end of the stream.
        hangup = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({serving, hangup}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done() and serving.exception() is None:
                await asyncio.wait({hangup}, timeout=HANGUP_SECONDS)  # as in `wait_for_hangup`
        finally:
            serving.cancel()
            hangup.cancel()
            await asyncio.gather(serving, hangup, return_exceptions=True)

    async def _reply(self, route: Route, caller: str, frame: RpcFrame, writer: asyncio.StreamWriter) -> None:
        try:
            reply = route.handler(caller, frame)
            if isinstance(reply, AsyncIterator):
                async for part in reply:
                    self.bytes_out += await send_frame(writer, {"body": part.body}, part.tensors)
                await send_frame(writer, {"body": {"end": True}})
            else:
                part = await reply
                self.bytes_out += await send_frame(writer, {"body": part.body}, part.tensors)
        except CallRefusedError as error:
            await send_frame(writer, {"refused": error.code, "why": error.message})
        except (OSError, EOFError):
            raise
        except MalformedFrameError as error:
            await send_frame(writer, {"refused": "malformed", "why": str(error)})
        except CallError as error:
            await send_frame(writer, {"refused": "later_stage", "why": str(error)})
        except Exception as error:
            log.exception("a call of %s failed", shorten(caller))
            await send_frame(writer, {"refused": "failed", "why": f"{type(error).__name__}: {error}"})


def set_environment() -> None:
    """Set the options that hivemind reads when it is imported."""
    os.environ["USE_LEGACY_BFLOAT16"] = "0"  # send bf16 in two bytes, not four
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "ERROR")  # it is noisy when peers leave


def build_daemon_factory(sockets: Path) -> tuple[Any, type[Exception]]:
    """Return the function that starts hivemind's daemon with its sockets in this folder, and its exception type.

    hivemind is imported here because `set_environment` has to run first.
    """
    set_environment()
    from hivemind.p2p import P2P, P2PDaemonError

    return type("Daemon", (P2P,), {"_UNIX_SOCKET_PREFIX": f"/unix{sockets}/"}).create, P2PDaemonError


async def wait_for_hangup(reader: asyncio.StreamReader) -> None:
    """Wait until the caller closes the stream: closing it with unread data would discard the reply."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HANGUP_SECONDS):
            while await reader.read(CHUNK_BYTES):
                pass


def remove_stale_sockets(parent: Path) -> None:
    """Delete the socket folders of processes that no longer exist. Folders are named after their process."""
    for folder in parent.glob("swarm-*-*"):
        number = folder.name.split("-")[1]
        with contextlib.suppress(OSError):  # another process may delete it, too
            if number.isdigit() and not Path(f"/proc/{number}").exists() and folder.stat().st_uid == os.getuid():
                shutil.rmtree(folder)


def shorten(peer: str) -> str:
    """Return the end of a peer's name, for logs."""
    return peer[-6:]


def get_loop_time() -> float:
    """Return the event loop's monotonic time in seconds."""
    return asyncio.get_running_loop().time()


def encode_address(address: str) -> bytes:
    """Return an address in the binary form of libp2p's daemon.

    hivemind encodes a peer's name within a relayed address as a CID of version 1, which the daemon rejects.
    """
    from hivemind.p2p import PeerID
    from hivemind.utils.multiaddr import Multiaddr

    start, separator, rest = address.partition("/p2p/")
    encoded = bytes(Multiaddr(start).to_bytes()) if start else b""
    if not separator:
        return encoded
    peer, _, rest = rest.partition("/")
    key = PeerID.from_base58(peer).to_bytes()
    return encoded + P2P_CODE + bytes([len(key)]) + key + (encode_address(f"/{rest}") if rest else b"")
