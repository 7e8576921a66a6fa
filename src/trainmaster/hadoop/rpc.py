"""Hadoop RPC over asyncio: a Connection to one server, and a Client that keeps one to whichever of several serves.

Many calls wait on one connection at once, each under its own number; replies come in any order. Nothing is polled: a
reply wakes its call. While calls wait and nothing comes, a ping goes out every PING seconds. No server answers it, but
one that is gone does not acknowledge it either, and TCP_USER_TIMEOUT turns that into a broken connection.

A connection ends once, for one reason: closed here or there, broken, a FATAL reply, or bytes that make no sense. All
calls that wait fail with it, at once. The server's last bytes are read first, because its last message is often a
refusal, and our own write may meet the closed socket before we read it.

A Client never sends a call twice that may have been carried out, unless `Retry.safe` says that it may be. Cancelling a
call is always safe: a request goes out whole or not at all, and a late reply is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
from google.protobuf.message import Message

from trainmaster.hadoop import wire
from trainmaster.hadoop.errors import Garbled, HadoopError, RemoteError, Unreachable
from trainmaster.hadoop.handshake import Handshake, Inbox, Peer, wrapped
from trainmaster.hadoop.security.auth import Auth, Kerberos, guarded

M = TypeVar("M", bound=Message)

PING = 10.0  # seconds of silence, while calls wait, until a ping is sent
SILENCE = 20_000  # ms until an unacknowledged byte means that the server is gone
HELD = 1 << 16  # bytes in the outbox; more than that are written at once
KDC = 30.0  # seconds that libkrb5 may take to find a KDC that answers; it waits 10 s for a silent one
EARLY = 16  # frames; no handshake has more


class Connection(asyncio.Protocol):
    """One TCP connection: `await Connection.open(...)`. Calls raise HadoopError."""

    def __init__(
        self, peer: Peer, protocol: str, auth: Auth, nonce: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self.peer = peer
        self._protocol = protocol
        self._client = nonce(16)
        self._handshake = Handshake(peer, protocol, auth, client=self._client, nonce=nonce)
        self._inbox = Inbox(peer)
        self._early: deque[bytes] = deque()
        self._came = asyncio.Event()  # a frame of the handshake, or the end
        self._writable = asyncio.Event()
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._number = 0
        self._methods: dict[str, bytes] = {}
        self._outbox: list[bytes] = []
        self._outbox_size = 0
        self._heard = False
        self._pinger: asyncio.TimerHandle | None = None
        self.ended: HadoopError | None = None

    @classmethod
    async def open(
        cls,
        peer: Peer,
        protocol: str,
        auth: Auth,
        *,
        timeout: float = 20.0,
        nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> Connection:
        """Connect and say who we are. `protocol` is the declaring class's name. `nonce(n)` returns n random bytes."""
        connection = cls(peer, protocol, auth, nonce)
        try:
            async with asyncio.timeout(timeout):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: connection, peer.host, peer.port)
                await connection._introduce()
        except TimeoutError:
            await connection.close()
            raise Unreachable(f"{peer} does not answer within {_figure(timeout)} s") from None
        except OSError as error:
            raise Unreachable(f"{peer} {_reason(error)}") from None
        except BaseException:
            await connection.close()
            raise
        return connection

    async def _introduce(self) -> None:
        handshake = self._handshake
        self._write(handshake.begin())
        while not handshake.done:
            await self._came.wait()
            if not self._early:
                assert self.ended is not None
                raise self.ended
            frame = self._early.popleft()
            if not self._early and self.ended is None:
                self._came.clear()
            try:
                answer = (
                    await asyncio.to_thread(handshake.receive, frame) if handshake.blocks else handshake.receive(frame)
                )
            except Garbled as error:
                raise self._with_peer(error) from None
            self._inbox.mechanism = handshake.mechanism
            self._write(answer)

    async def call(self, method: str, request: Message, response: type[M], *, timeout: float = 30.0) -> M:
        """Call `method` and wait for its answer. Unreachable.sent says whether the server may have done it all the same."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        if not self._writable.is_set():
            await self._room(method, timeout)
        if self.ended is not None:
            raise self._as_unsent(self.ended)
        number = self._free_number()
        data = wire.call(number, self._client, self._method(method), request)
        answer = self._waiting[number] = loop.create_future()
        timer = loop.call_at(end, self._expire, answer, method, timeout)
        try:
            self._send(data)
            body = await answer
        finally:
            timer.cancel()
            del self._waiting[number]
        try:
            return wire.read_message(response, body)
        except Garbled as error:
            raise self._with_peer(error) from None

    async def close(self) -> None:
        """Close the socket, and return when it is closed. Calls that wait fail."""
        self._end(Unreachable(f"the connection to {self.peer} was closed here"))
        if self._transport is not None:
            self._transport.abort()
            await self._gone.wait()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- out --

    async def _room(self, method: str, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                # Look again after each wait: a call that was woken first may have filled the buffer anew.
                while not self._writable.is_set():
                    await self._writable.wait()
        except TimeoutError:
            raise Unreachable(
                f"{self.peer} took nothing more for {_figure(timeout)} s: {method} was not sent"
            ) from None

    def _expire(self, answer: asyncio.Future[bytes], method: str, timeout: float) -> None:
        if not answer.done():
            text = f"{self.peer} has not answered {method} within {_figure(timeout)} s"
            answer.set_exception(Unreachable(text, sent=True))

    def _method(self, name: str) -> bytes:
        if name not in self._methods:
            self._methods[name] = wire.method(name, self._protocol)
        return self._methods[name]

    def _free_number(self) -> int:
        while self._number in self._waiting:
            self._number = 0 if self._number == wire.LAST_CALL else self._number + 1
        number = self._number
        self._number = 0 if number == wire.LAST_CALL else number + 1
        return number

    def _send(self, data: bytes) -> None:
        """Send a frame, wrapped where the handshake agreed on that."""
        mechanism = self._handshake.mechanism
        self._write(wrapped(mechanism, data) if mechanism is not None and mechanism.wraps else data)
        if self._pinger is None:
            self._heard = False
            self._pinger = asyncio.get_running_loop().call_later(PING, self._ping)

    def _write(self, data: bytes) -> None:
        """Collect bytes in the outbox: all that one step of the loop writes goes out at its end, in one packet where it fits."""
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(data)
        self._outbox_size += len(data)
        if self._outbox_size > HELD:
            self._flush()

    def _flush(self) -> None:
        if self._outbox and self._transport is not None and self.ended is None:
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()
        self._outbox_size = 0

    def _ping(self) -> None:
        self._pinger = None
        if self.ended is None and self._waiting:
            if self._heard:
                self._heard = False
                self._pinger = asyncio.get_running_loop().call_later(PING, self._ping)
            else:
                self._send(wire.ping(self._client))

    # -- in: called by the loop --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writable.set()
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE)

    def data_received(self, data: bytes) -> None:
        if self.ended is not None:
            return
        self._heard = True
        try:
            if self._handshake.done:
                for reply in self._inbox.replies(data):
                    self._take(reply)
            else:
                self._early.extend(self._inbox.frames(data))
                if len(self._early) > EARLY:
                    raise Garbled(f"sends {len(self._early)} frames before it was asked for any")
                if self._early:
                    self._came.set()
        except HadoopError as error:
            self._fail(self._with_peer(error))

    def _take(self, reply: wire.Reply) -> None:
        answer = self._waiting.get(reply.call)
        if reply.error is not None and (reply.fatal or reply.call < 0):
            if answer is None or answer.done():
                self._fail(reply.error)
            else:
                answer.set_exception(reply.error)
                self._fail(Unreachable(f"{self.peer} closed the connection over another call: {reply.error}"))
            return
        if answer is None:
            if not 0 <= reply.call < wire.LAST_CALL:
                raise Garbled(f"answers call {reply.call}, which cannot be a call")
            return  # a late reply to a call that was given up
        if not answer.done():
            if reply.error is not None:
                answer.set_exception(reply.error)
            else:
                answer.set_result(reply.body)

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, OSError):
            self._read_rest()
        reason = _reason(error) if isinstance(error, OSError) else "closed the connection"
        self._end(Unreachable(f"{self.peer} {reason}"))
        self._gone.set()

    def _read_rest(self) -> None:
        """Read the server's last words after a failed write: they may still be in the socket, which is closed only after this."""
        assert self._transport is not None
        descriptor = self._transport.get_extra_info("socket").fileno()
        with contextlib.suppress(OSError):
            while descriptor >= 0 and self.ended is None and (data := os.read(descriptor, 1 << 16)):
                self.data_received(data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- the end --

    def _fail(self, error: HadoopError) -> None:
        self._end(error)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: HadoopError) -> None:
        if self.ended is not None:
            return
        self.ended = error
        if self._pinger is not None:
            self._pinger.cancel()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Unreachable(error.message, sent=True) if isinstance(error, Unreachable) else error)
        self._came.set()
        self._writable.set()

    def _with_peer(self, error: HadoopError) -> HadoopError:
        return Garbled(f"{self.peer} {error.message}") if isinstance(error, Garbled) else error

    @staticmethod
    def _as_unsent(error: HadoopError) -> HadoopError:
        return Unreachable(error.message) if isinstance(error, Unreachable) else error.with_traceback(None)


_REASONS = {
    ConnectionRefusedError: "refuses the connection: is it running?",
    ConnectionResetError: "reset the connection",
    BrokenPipeError: "closed the connection",
    TimeoutError: "is not heard of any more",
    socket.gaierror: "is a host that nobody knows",
}


def _reason(error: OSError) -> str:
    """Return the words for an error that follow a server's name."""
    text = next((text for kind, text in _REASONS.items() if isinstance(error, kind)), "")
    return text or f"is not to be reached: {error.strerror or error}"


def _figure(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{max(seconds, 0):.2g}"


# -- one of several servers --

STANDBY = "org.apache.hadoop.ipc.StandbyException"
RETRIABLE = "org.apache.hadoop.ipc.RetriableException"  # starting, or too busy: try later, at the same address


def reads(method: str) -> bool:
    """Tell whether a method's name says that the call changes nothing that matters."""
    return method.startswith("get")


@attrs.frozen
class Retry:
    """When to try again. A call's timeout bounds all of it.

    After each round through the addresses the client waits `first` seconds, twice as long each time until `longest`, less up to half by
    chance. `safe(method)` says which calls may be sent again when nobody knows whether they were carried out. A server that has connected
    and is silent is left for the next one after `patience` seconds, where the call is safe.
    """

    tries: int | None = None  # the most tries; None: until the timeout
    first: float = 0.1
    longest: float = 5.0
    patience: float = 15.0
    connect: float = 10.0  # seconds for the connection and the handshake
    safe: Callable[[str], bool] = reads
    chance: Callable[[], float] = random.random

    def pause(self, round_: int) -> float:
        """Return the seconds to wait after the given round, the first being 1."""
        return min(self.longest, self.first * 2.0 ** min(round_ - 1, 30)) * (1 - self.chance() / 2)


class Client:
    """Calls of one protocol. The client opens a connection at the first call, opens it again when it broke, and goes on to the next
    address.
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        protocol: str,
        auth: Auth,
        *,
        retry: Retry = Retry(),
        server_principal: str = "",
        names: Sequence[str] = (),
        protection: Sequence[str],
    ) -> None:
        """`names`: what messages call the servers, in the order of their addresses; by default the addresses. `protection`: what is taken
        on the wire, in the words of hadoop.rpc.protection.
        """
        labels = names or [""] * len(addresses)
        self._peers = [Peer(*address, server_principal, name) for address, name in zip(addresses, labels, strict=True)]
        self._protocol, self._protection = protocol, protection
        self.auth = auth  # for the next connection
        self._retry = retry
        self._at = 0
        self._connection: Connection | None = None
        self._opening: tuple[Peer, asyncio.Task[Connection]] | None = None
        self._closed = False

    async def call(self, method: str, request: Message, response: type[M], *, timeout: float = 30.0) -> M:
        """Make a call, trying again as `Retry` says. Raises HadoopError: the server's RemoteError, AuthenticationFailed, Garbled, or
        Unreachable in the end.
        """
        loop = asyncio.get_running_loop()
        end, tries = loop.time() + timeout, 0
        while True:
            peer, connection = self._dial(), None
            try:
                connection = await self._await_connection(peer, end - loop.time())
                remaining = end - loop.time()
                if self._retry.safe(method) and len(self._peers) > 1:
                    remaining = min(remaining, self._retry.patience)
                return await connection.call(method, request, response, timeout=remaining)
            except (Unreachable, RemoteError) as error:
                tries += 1
                if not self._may_retry(error, method):
                    raise
                # At the end of our own time the server may only be slow, and other calls wait longer than this one.
                if loop.time() < end:
                    await self._leave(peer, connection, error)
                rounds, rest = divmod(tries, len(self._peers))
                pause = 0.0 if rest else self._retry.pause(rounds)
                if tries == self._retry.tries or loop.time() + pause >= end:
                    raise self._final_error(error, tries, timeout) from None
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close the client for good. Calls that wait fail."""
        self._closed = True
        if self._opening is not None:
            self._opening[1].cancel()
            await asyncio.wait([self._opening[1]])
        if self._connection is not None:
            await self._connection.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _dial(self) -> Peer:
        """Return the server that we are connected with, or about to be. One task opens for all callers that wait, any of whom may be
        cancelled.
        """
        if self._closed:
            raise Unreachable(f"the client of {', '.join(map(str, self._peers))} was closed here")
        if self._connection is not None and self._connection.ended is None:
            return self._connection.peer
        if self._opening is None:
            peer = self._peers[self._at]
            patience = self._retry.connect + (KDC if isinstance(self.auth, Kerberos) else 0.0)
            opening = Connection.open(peer, self._protocol, guarded(self.auth, self._protection), timeout=patience)
            self._opening = peer, asyncio.create_task(opening)
            self._opening[1].add_done_callback(self._keep_connection)
        return self._opening[0]

    async def _await_connection(self, peer: Peer, seconds: float) -> Connection:
        if self._opening is None:
            assert self._connection is not None
            return self._connection
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(self._opening[1])
        except TimeoutError:
            raise Unreachable(f"{peer} does not answer within {_figure(seconds)} s") from None
        except asyncio.CancelledError:
            if self._closed:
                raise Unreachable(f"the connection to {peer} was closed here") from None
            raise

    def _keep_connection(self, task: asyncio.Task[Connection]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._connection = task.result()

    def _may_retry(self, error: Unreachable | RemoteError, method: str) -> bool:
        if isinstance(error, RemoteError):
            return error.class_name in (STANDBY, RETRIABLE)
        return not error.sent or self._retry.safe(method)

    async def _leave(self, peer: Peer, connection: Connection | None, error: Unreachable | RemoteError) -> None:
        """Go on to the next address, unless another call has done so already. `connection`: the one that failed, if any."""
        if isinstance(error, RemoteError) and error.class_name == RETRIABLE:
            return
        if peer is self._peers[self._at] and (connection is None or connection is self._connection):
            self._at = (self._at + 1) % len(self._peers)
        if connection is not None and connection is self._connection:
            self._connection = None
            await connection.close()

    def _final_error(self, error: Unreachable | RemoteError, tries: int, timeout: float) -> HadoopError:
        if isinstance(error, RemoteError) and error.class_name == RETRIABLE:
            return error
        if tries == 1:
            return error
        everywhere = ", ".join(f"{peer.host}:{peer.port}" for peer in self._peers)
        if isinstance(error, RemoteError):
            return Unreachable(f"none of {everywhere} is active: {error.message}")
        addresses = f": {everywhere}" if len(self._peers) > 1 else ""
        summary = f"(tried {tries} times within {_figure(timeout)} s{addresses})"
        return Unreachable(f"{error.message} {summary}", sent=error.sent)
