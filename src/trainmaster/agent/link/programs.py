"""The agent's end of the Unix socket over which programs of the current attempt speak to it.

One JSON object a line, both ways. A connection begins with `hello {v, attempt, pid, mark?, input?, counts?}`; any attempt but the current
one is refused. `counts`: [records, records of a shard, epochs] of an input that the program counts. The mark is the descriptor at which
the process shows the shard that it is in the middle of (`agent.input.begun`). Then, from a program:

    progress   {value?, step?, metrics?}            no answer
    phase      {name or null}                       no answer
    checkpoint {state: begin | saved | failed}      answered where it has an id
    lease      {id, input, want, done, wait}        answered {id, shards: [[number, epoch, path, kind, start, end]], end?, none?, unknown?}
    done       {id?, input, done: [[number, records]]}
    commit     {id}                                 answered {id, ok}, or {id, error}
    state      {id, step}                           answered {id, ok} once the master knows that a training begins with this state.
    barrier    {id, name, copy}                     answered {id, ok} once it opens
    lock       {id, name, copy}                     answered {id, ok} once it is held: as long as the connection lives
    join       {id, name, copy, payload, step, agreed}
                                                    answered {id, round, rank, finished, members: [[task, copy, address,
                                                    payload, step, new]]} once a round opens, or {id, error}
    credentials {id}                                answered {id, token, certificate, key, ring, address}, see `Credentials`

and to it: `welcome {lost}`, `refused {why}`, `warning {seconds, why}`, `broken {round}`, `wanted {round}` and answers.
A frame that is not of this form closes its connection and does nothing else: a program cannot harm its agent, and the shards that it had
leased go back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeAlias

from trainmaster.agent.input.begun import Mark, open_mark
from trainmaster.agent.input.leases import AHEAD_MOST, Lease, Pool, StateMark
from trainmaster.agent.link.waits import Waits
from trainmaster.core.foreign import json_in, printable
from trainmaster.core.input.ranges import RangeSet
from trainmaster.core.input.shards import NAMED_BY_PROGRAMS
from trainmaster.core.waits import BARRIER, LOCK, LONGEST, PAYLOAD, RENDEZVOUS, WAITS
from trainmaster.runtime.network.listeners import PROGRAMS

PROTOCOL = "1.0"
LINE_LIMIT = 256 * 1024  # bytes of a frame
GREETING_LIMIT = 64 * 1024  # bytes that may come before a hello is accepted
UNREAD_LIMIT = 1024 * 1024  # bytes that a program may leave unread
CONNECTIONS = 512
ASKS = 32  # of one connection at once
POOLS = 64
BEGUN = 256  # processes that ended in the middle of a shard, the newest ones
DIGEST = 12  # characters, in place of the secrets in a name
LOOKED_AT = 64 * 1024  # characters of a text in which secrets are looked for; the rest is dropped
METRICS = 64  # of one frame; names and texts are cut at this number of characters

OnProgress: TypeAlias = Callable[[float | None, int | None, dict[str, float | str]], None]
OnPhase: TypeAlias = Callable[[str | None], None]
OnCheckpoint: TypeAlias = Callable[[str, dict[str, int]], None]
OnBegun: TypeAlias = Callable[[list[list[Any]]], None]
OnCounted: TypeAlias = Callable[[str, list[int]], None]
OnCommit: TypeAlias = Callable[[], Awaitable[str]]
OnState: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None]]


async def _refuse_commit() -> str:
    return "no attempt runs"


async def _ignore_state(begun: Mapping[str, Any]) -> None:
    pass


log = logging.getLogger(__name__)


class Garbage(ValueError):
    """A program sent bytes that are not of the protocol."""


class Credentials(NamedTuple):
    """How the job's programs know each other: parameter servers and their workers, and the members of a ring.

    `token`: the job's, which no program gets. `certificate`: PEM; "" where the job is on one machine. `key`: of the certificate, PEM; ""
    but in a role with a port `ps`. `address`: where the others reach this task.
    """

    token: str = ""
    certificate: str = ""
    key: str = ""
    address: str = "127.0.0.1"

    def for_programs(self) -> dict[str, str]:
        import hmac  # few programs ask

        token, ring = (
            hmac.new(self.token.encode(), use, "sha256").hexdigest() for use in (b"parameter servers", b"rings")
        )
        return {"token": token, "certificate": self.certificate, "key": self.key, "ring": ring, "address": self.address}


class Programs:
    """The socket at `path`, and the pools of the current attempt.

    `on_progress(value, step, metrics)`, `on_phase(name or None)`, `on_checkpoint(state, marks)`, `on_begun(rows)`,
    `on_counted(input, counts)`, `on_state(begun)` and `on_commit()`, which returns why nothing was committed, are called in the loop.
    Marks are those of the moment when the checkpoint began. Copies may write one together: it begins with the first copy, and is saved
    when the last copy has said so and none of them has failed, or gone away, meanwhile.
    """

    def __init__(
        self,
        path: str,
        lease: Lease,
        *,
        send: Callable[[dict[str, Any]], None] = lambda message: None,
        on_progress: OnProgress = lambda value, step, metrics: None,
        on_phase: OnPhase = lambda name: None,
        on_checkpoint: OnCheckpoint = lambda state, marks: None,
        on_begun: OnBegun = lambda rows: None,
        on_counted: OnCounted = lambda name, counts: None,
        on_commit: OnCommit = _refuse_commit,
        on_state: OnState = _ignore_state,
    ) -> None:
        self.path, self.attempt = path, 0
        self.on_progress, self.on_phase, self.on_checkpoint = on_progress, on_phase, on_checkpoint
        self.on_begun, self.on_counted = on_begun, on_counted
        self.on_commit, self.on_state = on_commit, on_state
        self.connections: set[_Connection] = set()
        self.buffer = memoryview(bytearray(64 * 1024))
        self.credentials = Credentials()
        self.redact: Callable[[str], str] = str  # texts of programs, before they are cut
        self._lease = lease
        self.waits = Waits(send, lambda: asyncio.get_running_loop().time())
        self._pools: dict[str, Pool] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._answers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._warning: tuple[float, str] | None = None  # until when (loop time), why
        self._writers: list[_Connection] = []  # the copies that write a checkpoint now
        self._marks_at_begin: dict[str, int] = {}  # the marks when the first of them began
        self._has_failed = False  # one of them failed
        self._begun_at = 0.0  # when the attempt began, by the loop's time
        self._begun: list[list[Any]] = []  # the shards that ended processes were in the middle of
        self._ended_within = False  # some process ended in the middle of a shard, or of several

    async def start(self) -> None:
        """Listen; only this user may connect. Raises OSError where the socket cannot be made."""
        loop = asyncio.get_running_loop()
        listener = PROGRAMS.at_path(self.path)
        try:
            self._server = await loop.create_unix_server(lambda: _Connection(self), sock=listener, backlog=128)
        except BaseException:
            listener.close()
            raise

    async def close(self) -> None:
        """Stop listening, drop all connections and leases, remove the socket."""
        self.end()
        if self._server is not None:
            self._server.close()
            self._server = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def begin(self, attempt: int) -> None:
        """Serve the programs of `attempt` from now on, and no others."""
        self.end()
        self.attempt, self._begun_at = attempt, asyncio.get_running_loop().time()
        self._ended_within = False
        self.waits.begin(attempt)

    def end(self) -> None:
        """End the attempt: close its connections. The master may lease its shards again."""
        self.attempt, self._warning = 0, None
        self._writers.clear()
        for task in (*self._tasks, *self._answers):
            task.cancel()
        self._tasks.clear()
        self._pools.clear()
        self._begun.clear()
        self.waits.begin(0)
        for connection in list(self.connections):
            connection.phase = None
            if connection.mark is not None:
                connection.mark.close()
                connection.mark = None
            connection.abort()

    async def drain(self) -> None:
        """Tell which shards the programs were in the middle of, and return once all that they reported as done are durable.

        Called before the end of an attempt is reported, when no process of it runs any more.
        """
        for connection in self.connections:
            self._note_begun(connection)
        if self._begun:
            self.on_begun(self._begun[:])
            self._begun.clear()
        for pool in list(self._pools.values()):
            await pool.drain()

    def ended_between_shards(self) -> bool:
        """Tell whether no process of the program ended in the middle of a shard. Called once none runs any more."""
        for connection in self.connections:
            self._note_begun(connection)
        return not self._ended_within

    async def reported(self) -> dict[str, RangeSet]:
        """Return the shards of each input that are durable with the master and in no part of the outputs: those of the next part."""
        for pool in list(self._pools.values()):
            await pool.drain()
        return {name: pool.reported() for name, pool in self._pools.items()}

    def keep(self, shards: Mapping[str, RangeSet]) -> None:
        """Note that the shards of each input are in a part of the outputs."""
        for name, ranges in shards.items():
            self._pools[name].keep(ranges)

    def warn(self, seconds: float, why: str) -> None:
        """Tell the programs, those that connect later too, that the container will be taken back."""
        self._warning = (asyncio.get_running_loop().time() + seconds, why)
        for connection in list(self.connections):
            if connection.greeted:
                connection.send(self.warning())

    def warning(self) -> dict[str, Any]:
        if self._warning is None:
            return {}
        until, why = self._warning
        remaining = max(0.0, until - asyncio.get_running_loop().time())
        return {"op": "warning", "seconds": round(remaining, 3), "why": why}

    def held(self) -> dict[str, list[list[int]]]:
        """Return the ranges that this attempt holds of each input. Every new channel reports them first."""
        return {name: ranges for name, pool in self._pools.items() if (ranges := pool.held())}

    def drop(self, name: str, ranges: Any) -> None:
        """Drop ranges of `held` that are not ours, as the master says."""
        if name in self._pools:
            self._pools[name].drop(ranges)

    def marks(self) -> dict[str, int]:
        """Return for each input the last mark that the master gave: shards done by that mark were done before now."""
        return {name: pool.mark for name, pool in self._pools.items()}

    def wake(self) -> None:
        """Ask at once: shards may have become free, or the master is back."""
        for pool in self._pools.values():
            pool.wake()

    # -- for connections --

    def shown(self, text: str, most: int) -> str:
        """Return the first characters of a program's text, as people see it."""
        return printable(self.redact(text[:LOOKED_AT]), most)

    def secretless(self, name: str) -> str:
        """Return the name at which programs meet, without secrets.

        Two names stay two: a digest that needs the job's token keeps them apart.
        """
        shown = self.redact(name)
        if shown == name:
            return name
        import hmac  # few names have secrets

        data = name.encode(errors="surrogatepass")
        digest = hmac.new(self.credentials.token.encode(), data, "sha256").hexdigest()[:DIGEST]
        return f"{shown[: LONGEST - DIGEST - 1]} {digest}"

    def pool(self, name: Any) -> Pool:
        if not isinstance(name, str) or not name or len(name) > 256:
            raise Garbage("an input's name is due")
        if name not in self._pools:
            if len(self._pools) >= POOLS:
                raise Garbage("too many inputs")
            self._pools[name] = Pool(name, self._lease)
            self._tasks.append(asyncio.get_running_loop().create_task(self._pools[name].run()))
        return self._pools[name]

    def commit(self, connection: _Connection, request: int) -> None:
        """Answer a program once what it has made so far is committed."""

        async def commit() -> None:
            why = await self.on_commit()
            connection.reply(request, {"error": why} if why else {"ok": True})

        self._answer_later(commit())

    def begin_state(self, connection: _Connection, request: int, begun: Mapping[str, Any]) -> None:
        """Answer a program once the master knows that a round of a training begins with its state."""

        async def begin() -> None:
            await self.on_state(begun)
            connection.reply(request, {"ok": True})

        self._answer_later(begin())

    def _answer_later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    def gone(self, connection: _Connection) -> None:
        self.connections.discard(connection)
        self._note_begun(connection)
        self.waits.left(connection)
        for pool in self._pools.values():
            pool.left(connection)
        while connection in self._writers:
            self.checkpoint(connection, "failed")
        if connection.phase is not None:
            self.on_phase(None)

    def _note_begun(self, connection: _Connection) -> None:
        """Note the shard that the process of a connection, which is closing, was in the middle of."""
        mark, connection.mark = connection.mark, None
        if mark is None:
            return
        self._ended_within = self._ended_within or mark.is_within
        if (number := mark.number) is not None:
            elapsed = round(asyncio.get_running_loop().time() - self._begun_at, 3)
            names = [name for name, pool in self._pools.items() if pool.has_out(connection, number)]
            self._begun += [[mark.process, name, number, elapsed] for name in names]
            del self._begun[:-BEGUN]
        mark.close()

    def checkpoint(self, writer: _Connection, state: str) -> None:
        if not self._writers:
            self._marks_at_begin, self._has_failed = self.marks(), False
        if state == "begin":
            self._writers.append(writer)
        else:
            if writer in self._writers:
                self._writers.remove(writer)
            self._has_failed = self._has_failed or state == "failed"
            state = "failed" if self._has_failed else "saved"
        if state == "begin" or not self._writers:
            self.on_checkpoint(state, self._marks_at_begin)


class _Connection(asyncio.BufferedProtocol):
    """One program's connection. It implements `leases.Reader`.

    All connections read into one buffer, since the bytes are taken out of it at once: a buffer for each read (asyncio's
    default) costs more than everything else here.
    """

    def __init__(self, programs: Programs) -> None:
        self.greeted, self.phase = False, None
        self.mark: Mark | None = None
        self._programs, self._open_requests = programs, 0
        self._join_request = -1  # the newest
        self._unread = bytearray()
        self._transport: asyncio.Transport | None = None

    phase: str | None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._programs.connections) >= CONNECTIONS or not _is_trusted_peer(transport):
            self.abort()
            return
        self._programs.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._programs.gone(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._programs.buffer

    def buffer_updated(self, size: int) -> None:
        unread = self._unread
        unread += self._programs.buffer[:size]
        try:
            while (end := unread.find(b"\n")) >= 0 and self._transport is not None:
                line = bytes(unread[:end])
                del unread[: end + 1]
                self._frame(line)
            if len(unread) > (LINE_LIMIT if self.greeted else GREETING_LIMIT):
                raise Garbage("a frame over the limit")
        except Garbage as error:
            log.warning("a program's connection was closed: %s", error)
            self.abort()

    def send(self, frame: Mapping[str, Any]) -> None:
        if self._transport is None or not frame:
            return
        self._transport.write(json.dumps(frame, separators=(",", ":")).encode() + b"\n")
        if self._transport.get_write_buffer_size() > UNREAD_LIMIT:
            self.abort()

    def reply(self, request: int, answer: Mapping[str, Any]) -> None:
        self._open_requests -= 1
        self.send({"id": request, **answer})

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._transport = None

    # -- frames --

    def _frame(self, line: bytes) -> None:
        try:
            frame = json_in(line)
        except ValueError as error:
            raise Garbage(f"not JSON: {error}") from None
        if not isinstance(frame, dict):
            raise Garbage("not a JSON object")
        op = frame.get("op")
        if not self.greeted and op != "hello":
            raise Garbage("no hello")
        act = _OPS.get(op) if isinstance(op, str) else None
        if act is None:
            if op is None:
                raise Garbage("a frame without op")
            return  # of a later minor version
        act(self, frame)

    def _hello(self, frame: dict[str, Any]) -> None:
        attempt = frame.get("attempt")
        if str(frame.get("v", "")).split(".")[0] != PROTOCOL.split(".")[0]:
            self._refuse(f"version {frame.get('v')} of the runtime, the agent speaks {PROTOCOL}")
        elif type(attempt) is not int or attempt != self._programs.attempt or not attempt:
            self._refuse(f"attempt {attempt} is not the current one")
        else:
            self.greeted = True
            lost = []
            if "counts" in frame:
                self._programs.on_counted(self._programs.pool(frame.get("input")).name, _counts(frame["counts"]))
            if "hold" in frame:
                lost = self._programs.pool(frame.get("input")).hold(self, _numbers(frame["hold"]))
            self.send({"op": "welcome", "v": PROTOCOL, "lost": lost})
            self.send(self._programs.warning())
            if type(frame.get("mark")) is int and self._transport is not None and self.mark is None:
                self.mark = open_mark(_peer(self._transport)[0], frame["mark"])
            if "phase" in frame:
                self._phase({"name": frame["phase"]})

    def _refuse(self, why: str) -> None:
        self.send({"op": "refused", "why": why})
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _progress(self, frame: dict[str, Any]) -> None:
        value, step, figures = frame.get("value"), frame.get("step"), frame.get("metrics") or {}
        if not (value is None or (_is_number(value) and 0 <= value <= 1)) or not (step is None or _is_whole(step)):
            raise Garbage("a malformed progress")
        if not isinstance(figures, dict) or len(figures) > METRICS:
            raise Garbage("malformed metrics")
        metrics = {}
        for name, figure in figures.items():
            if not _is_number(figure) and not isinstance(figure, str):
                raise Garbage("a metric is a number")
            metrics[self._programs.shown(name, METRICS)] = (
                self._programs.shown(figure, METRICS) if isinstance(figure, str) else figure
            )
        self._programs.on_progress(value, step, metrics)

    def _phase(self, frame: dict[str, Any]) -> None:
        name = frame.get("name")
        if name is not None and not isinstance(name, str):
            raise Garbage("a malformed phase")
        self.phase = None if name is None else self._programs.shown(name, 256)
        self._programs.on_phase(self.phase)

    def _checkpoint(self, frame: dict[str, Any]) -> None:
        state, request = frame.get("state"), frame.get("id")
        if state not in ("begin", "saved", "failed"):
            raise Garbage("a malformed checkpoint")
        self._programs.checkpoint(self, state)
        if request is not None:
            self.send({"id": request, "ok": True})

    def _lease(self, frame: dict[str, Any]) -> None:
        request, want = frame.get("id"), frame.get("want")
        if type(request) is not int or type(want) is not int or want < 1:
            raise Garbage("a malformed ask")
        self._open_requests += 1
        if self._open_requests > ASKS:
            raise Garbage("too many asks at once")
        pool = self._programs.pool(frame.get("input"))
        self._done(frame)
        pool.ask(self, request, min(want, AHEAD_MOST), frame.get("wait") is not False)

    def _barrier(self, frame: dict[str, Any]) -> None:
        self._wait(BARRIER, frame)

    def _lock(self, frame: dict[str, Any]) -> None:
        self._wait(LOCK, frame)

    def _join(self, frame: dict[str, Any]) -> None:
        payload, step, agreed = frame.get("payload", ""), frame.get("step", 0), frame.get("agreed", False)
        if (
            not isinstance(payload, str) or len(payload.encode()) > PAYLOAD or not _is_whole(step) or step < 0
            or type(agreed) is not bool
        ):  # fmt: skip
            raise Garbage("a malformed join")
        if frame.get("id") == self._join_request:
            return  # sent twice
        request, name, copy = self._waited(RENDEZVOUS, frame)
        self._join_request = request
        more = {"payload": payload, "step": step, "agreed": agreed}
        if why := self._programs.waits.join(self, request, name, copy, more):
            self.reply(request, {"error": why})

    def _credentials(self, frame: dict[str, Any]) -> None:
        if type(frame.get("id")) is not int:
            raise Garbage("malformed credentials")
        self.send({"id": frame["id"], **self._programs.credentials.for_programs()})

    def _wait(self, kind: str, frame: dict[str, Any]) -> None:
        request, name, copy = self._waited(kind, frame)
        self._programs.waits.add(self, request, kind, name, copy)

    def _waited(self, kind: str, frame: dict[str, Any]) -> tuple[int, str, int]:
        """Return the request, the name and the copy of a wait."""
        request, name, copy = frame.get("id"), frame.get("name"), frame.get("copy", 0)
        if (
            type(request) is not int
            or type(copy) is not int
            or copy < 0
            or not isinstance(name, str)
            or not 0 < len(name) <= LONGEST
        ):
            raise Garbage(f"a malformed {kind}")
        self._open_requests += 1
        if self._open_requests > ASKS or self._programs.waits.count >= WAITS:
            raise Garbage("too many waits at once")
        return request, self._programs.secretless(name), copy

    def _done(self, frame: dict[str, Any]) -> None:
        pool = self._programs.pool(frame.get("input"))
        if frame.get("kept_by") in NAMED_BY_PROGRAMS:
            pool.kept_by = frame["kept_by"]
        if done := frame.get("done"):
            pool.done(self, *_done(done, self._programs.secretless))

    def _report(self, frame: dict[str, Any]) -> None:
        self._done(frame)
        if "id" in frame:
            self.send({"id": frame["id"], "ok": True})

    def _commit(self, frame: dict[str, Any]) -> None:
        self._programs.commit(self, self._request(frame))

    def _state(self, frame: dict[str, Any]) -> None:
        names = ("training", "round", "step")
        mark = _state_mark([frame.get(name) for name in names], self._programs.secretless)
        begun = {**mark._asdict(), "lost": frame.get("lost") is True, "restored": frame.get("restored") is True}
        self._programs.begin_state(self, self._request(frame), begun)

    def _request(self, frame: dict[str, Any]) -> int:
        """Return the number of a request that is answered later."""
        request = frame.get("id")
        if type(request) is not int:
            raise Garbage(f"a malformed {frame['op']}")
        self._open_requests += 1
        if self._open_requests > ASKS:
            raise Garbage("too many asks at once")
        return request


_OPS: dict[str, Callable[[_Connection, dict[str, Any]], None]] = {
    "hello": _Connection._hello,
    "progress": _Connection._progress,
    "phase": _Connection._phase,
    "checkpoint": _Connection._checkpoint,
    "lease": _Connection._lease,
    "done": _Connection._report,
    "commit": _Connection._commit,
    "state": _Connection._state,
    "barrier": _Connection._barrier,
    "lock": _Connection._lock,
    "join": _Connection._join,
    "credentials": _Connection._credentials,
}


def _is_trusted_peer(transport: asyncio.Transport) -> bool:
    """Tell whether the peer runs as this user, or as root."""
    return _peer(transport)[1] in (os.getuid(), 0)


def _peer(transport: asyncio.Transport) -> tuple[int, int]:
    """Return the process and the user at the other end."""
    connection = transport.get_extra_info("socket")
    size = struct.calcsize("3i")
    process, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return process, user


def _is_whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    return math.isfinite(value) if type(value) is float else _is_whole(value)


def _numbers(value: Any) -> list[int]:
    if not isinstance(value, list) or not all(type(n) is int and n >= 0 for n in value):
        raise Garbage("numbers of shards are due")
    return value


def _counts(value: Any) -> list[int]:
    if not isinstance(value, list) or len(value) != 3 or not all(type(count) is int and count > 0 for count in value):
        raise Garbage("three counts of an input are due")
    return value


def _done(value: Any, secretless: Callable[[str], str]) -> tuple[dict[int, int | None], dict[int, StateMark]]:
    """Return the records of the shards that are done, and the states that have them, where members of a training keep them."""
    if not isinstance(value, list):
        raise Garbage("[number, records, state] of each shard are due")
    done: dict[int, int | None] = {}
    states: dict[int, StateMark] = {}
    for row in value:
        if not (isinstance(row, list) and len(row) in (2, 3) and type(row[0]) is int):
            raise Garbage("[number, records, state] of each shard are due")
        number, records, state = (*row, None)[:3]
        if records is not None and not (type(records) is int and 0 <= records < 2**32 - 1):
            raise Garbage("a count of records is a whole number")
        done[number] = records
        if state is not None:
            states[number] = _state_mark(state, secretless)
    return done, states


def _state_mark(value: Any, secretless: Callable[[str], str]) -> StateMark:
    if not (isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and len(value[0]) <= LONGEST):
        raise Garbage("a state is [training, round, step]")
    if not all(type(number) is int and number >= 0 for number in value[1:]):
        raise Garbage("round and step are whole numbers")
    return StateMark(secretless(value[0]), *value[1:])
