"""A worker's side of parameter servers.

    client = from_job()                                      # or Client(addresses, ...)
    client.define(dense={"w": array}, tables={"user": TableSpec(16)}, optimizer={"name": "Adam"})
    distinct, places = deduplicated(ids)
    pulled = client.pull(rows={"user": distinct})            # pulled.dense["w"], pulled.rows["user"][places]
    try:
        client.push(pulled.version, dense={"w": gradient}, rows={"user": (distinct, summed(places, gradients, len(distinct)))})
    except Refused:                                          # stale: the batch is to be done again
        ...

A pull is one round trip, to all servers at once. A push is one too where there is one server. With more of them it takes two: first all
of them take the draft, then server 0 puts it in order. Whatever happens to a server meanwhile, the push is applied everywhere once, or
nowhere: the client asks until it is answered, under one name.

A server that is away is waited for, up to `patience` seconds. One that comes back without what it had (it keeps no files) is
`StateLost`, since nothing can be right then.
"""

from __future__ import annotations

import contextlib
import functools
import math
import selectors
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy

from .. import runtime
from .errors import BadRequest, Moved, Refused, ServerError, ServerGone, StateLost, Superseded
from .optimizers import clip_by_global_norm
from .order import LATE, STALE, UNKNOWN
from .placement import server_of_parameter, servers_of_rows
from .shard import DENSE, IDS, ROWS
from .specification import Definition, TableSpec, Updates, definition_of, optimizer_of, values_of
from .tables.table import BadIds, sum_by_row
from .wire.connections import TO_SERVER, TO_WORKER, Connection, Message, check_index, first_reached
from .wire.messages import AGAIN, BAD, MOVED, NOT_FINITE, Malformed, parts_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from typing import Any

    from numpy.typing import NDArray

    Floats = NDArray[numpy.float32]
    Integers = NDArray[numpy.int64]
    Header = dict[str, Any]
    Request = tuple[Header, Mapping[str, Any]]
    Addresses = Sequence[str | Sequence[str]]

PATIENCE = 600.0  # s
_SEEDED = 2**16  # rows that are sent at once
_PAUSES = (0.01, 0.1)  # s between tries to connect: the first and the longest
_ERRORS: dict[Any, type[Exception]] = {BAD: BadRequest, NOT_FINITE: FloatingPointError}  # by the kind of an answer
_AT_ONCE = 0.001  # s, for an answer that has not come in time
_SHOWN_AFTER = 1.0  # s of them, before the worker's status says what it waits for


@dataclass(frozen=True)
class Pulled:
    """Parameters by name, rows of each table in the order of the ids, and the version that all of them have at least.

    `newest`: the newest version that some of them have; equal to `version` where all are of one version.
    """

    version: int
    newest: int
    dense: dict[str, Floats] = field(default_factory=dict)
    rows: dict[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class Identity:
    """The speaker: the job's token, its certificate (PEM; "": Unix sockets alone), and the task and attempt of this process."""

    token: str
    certificate: str = ""
    task: str = "worker:0"
    attempt: int = 1


class Client:
    """A client of all servers, for one thread; `prefetch` uses one of its own.

    `addresses`: of each server one, or several to try in turn; or a function that returns these, asked at each try to connect.
    `half`: gradients and values are float16 on the wire.
    """

    def __init__(
        self,
        addresses: Addresses | Callable[[], Addresses],
        identity: Identity,
        *,
        half: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        find = addresses if callable(addresses) else lambda: addresses
        self._half, self._identity = half, identity
        self._servers = self._reached(find, patience)
        self.definition: Definition | None = None
        self.version = 0  # the newest that this client knows of
        self._step = time.time_ns() // 1_000_000  # another client of this attempt goes on behind the last one
        self._views = self._step
        self._background: ThreadPoolExecutor | None = None
        self._background_servers: Servers | None = None

    def _reached(self, find: Callable[[], Addresses], patience: float) -> Servers:
        return Servers(find, self._identity, patience)

    @property
    def servers(self) -> int:
        """How many servers there are, as far as this client knows."""
        return len(self._servers.links)

    def define(
        self,
        dense: Mapping[str, Any] | None = None,
        tables: Mapping[str, TableSpec] | None = None,
        optimizer: Any = None,
        updates: Updates | None = None,
    ) -> int:
        """Define parameters with their initial values, tables, optimizer and updates, and return the version that the servers have.

        The first worker that comes defines; the others must say the same, and their initial values are not used. Raises ServerError.
        """
        values = values_of(dense or {})
        shapes = {name: value.shape for name, value in values.items()}
        chosen = optimizer_of({"name": "SGD"} if optimizer is None else optimizer)
        definition = Definition(shapes, dict(tables or {}), chosen, updates or Updates())
        plain = definition.to_plain()
        self.definition = definition_of(plain)
        self._servers.be_defined(False)
        answer = self._servers.ask_first({"op": "define", "definition": plain}, values)
        self._servers.be_defined(True)
        self.version = max(self.version, int(answer.header["version"]))
        return int(answer.header["version"])

    def adopt(self) -> Definition:
        """Take over what the servers hold already, as they began from a checkpoint, and return it. Raises ServerError."""
        answer = self._servers.ask_first({"op": "definition"})
        self.definition = definition_of(answer.header["definition"])
        self.version = max(self.version, int(answer.header["version"]))
        return self.definition

    def seed(self, table: str, ids: Any, rows: Any) -> None:
        """Put rows into a table, with which the training begins; behind its first version they change nothing. Raises ServerError."""
        self._check_definition()
        ids, rows = _whole_ids(table, ids), numpy.asarray(rows, numpy.float32)
        for begin in range(0, len(ids), _SEEDED):
            piece = slice(begin, begin + _SEEDED)
            self._servers.ask(functools.partial(_seeds, table, ids[piece], rows[piece]))

    def pull(
        self, dense: bool | Sequence[str] = True, rows: Mapping[str, Any] | None = None, *, at_least: int | None = None
    ) -> Pulled:
        """Return parameters (all, none, or those named) and the rows of ids, which should differ from each other: see `deduplicated`.

        `at_least`: the oldest version that will do; None: the newest that this client knows of. Raises ServerError.
        """
        pulled = self._pull(self._servers, dense, rows or {}, self.version if at_least is None else at_least)
        self.version = max(self.version, pulled.version)
        return pulled

    def pull_exactly(self, rows: Mapping[str, Any] | None = None) -> Pulled:
        """Return all parameters and the rows of ids of one version of all servers, whatever is pushed meanwhile. Raises ServerError."""
        pulled = self._pull(self._servers, True, rows or {}, self.version, is_exact=True)
        self.version = max(self.version, pulled.version)
        return pulled

    def prefetch(self, dense: bool | Sequence[str] = False, rows: Mapping[str, Any] | None = None) -> Future[Pulled]:
        """Pull in the background, while the present step runs, and return the future of what `pull` returns.

        The values do not include this step's push. So `prefetch` is for asynchronous updates, or a tolerance of at least 1.
        """
        if self._background is None or self._background_servers is None:
            self._background = ThreadPoolExecutor(1, "trainmaster-ps")
            self._background_servers = self._servers.again()
        return self._background.submit(self._pull, self._background_servers, dense, dict(rows or {}), self.version)

    def push(
        self,
        version: int,
        dense: Mapping[str, Any] | None = None,
        rows: Mapping[str, tuple[Any, Any]] | None = None,
        *,
        learning_rate: float | None = None,
    ) -> int:
        """Push gradients that were computed from `version`, and return the servers' version once they are in order.

        `rows`: (ids, gradients) of each table; ids should differ from each other, and gradients of equal ids be summed: see `summed`.
        With `grads_to_wait` above 1 the version returned may be the present one. Raises Refused where the push is stale, Superseded where a
        newer attempt of this task is there, FloatingPointError where a gradient is not finite, and ServerError.
        """
        return self._push(version, dense or {}, rows or {}, learning_rate, False).version

    def push_and_pull(
        self,
        version: int,
        dense: Mapping[str, Any] | None = None,
        rows: Mapping[str, tuple[Any, Any]] | None = None,
        *,
        learning_rate: float | None = None,
    ) -> Pulled:
        """Push, and return all parameters as they are after it, by one round trip where there is one server. Raises what `push` does."""
        return self._push(version, dense or {}, rows or {}, learning_rate, True)

    def _push(
        self,
        version: int,
        dense: Mapping[str, Any],
        rows: Mapping[str, tuple[Any, Any]],
        learning_rate: float | None,
        is_pull: bool,
    ) -> Pulled:
        self._check_definition()
        dense, rows = self._clipped(dense, rows)
        self._step += 1
        header: Header = {
            "op": "draft",
            "step": self._step,
            "base": int(version),
            "rate": learning_rate,
            "half": self._half,
        }

        def drafts(servers: int) -> list[Request]:
            is_last = servers == 1
            whole = header | {"is_last": is_last, "is_pull": is_pull and is_last}
            return [(whole, arrays) for arrays in self._split_push(dense, rows, servers)]

        while True:
            answers = self._servers.ask(drafts)
            decision = answers[0].header
            if len(answers) > 1:
                decision = self._servers.ask_first({"op": "commit", "step": self._step}).header
            if decision["why"] != UNKNOWN:
                break
        newest = int(decision["version"])
        self.version = max(self.version, newest)
        if decision["why"] == STALE:
            raise Refused(newest)
        if decision["why"] == LATE:
            raise Superseded(f"a newer attempt of {self._identity.task} than {self._identity.attempt} pushes")
        if is_pull and len(answers) > 1:
            return self.pull()
        return Pulled(newest, newest, _parameters(answers))

    def flush(self) -> int:
        """Have the pushes that wait for others make a version now, and return the servers' version. Raises ServerError."""
        answer = self._servers.ask_first({"op": "flush"})
        self.version = max(self.version, int(answer.header["version"]))
        return self.version

    def checkpoint(self) -> int:
        """Begin a checkpoint of the present version, which is written beside the training, and return that version. Raises ServerError."""
        answer = self._servers.ask_first({"op": "checkpoint"})
        return int(answer.header["version"])

    def ids(self, table: str) -> Integers:
        """Return all ids of a table that have a row, ascending. Raises ServerError."""
        answers = self._servers.ask_each({"op": "ids", "table": table})
        return numpy.sort(numpy.concatenate([answer.arrays[IDS + table] for answer in answers]))

    def status(self) -> list[Header]:
        """Return what each server tells of itself: version, newest whole checkpoint (-1: none), and rows and memory of its tables."""
        return [answer.header for answer in self._servers.ask_each({"op": "status"})]

    def close(self) -> None:
        if self._background is not None:
            self._background.shutdown(cancel_futures=True)
        for servers in (self._servers, self._background_servers):
            if servers is not None:
                servers.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # -- below --

    def _pull(
        self,
        servers: Servers,
        dense: bool | Sequence[str],
        rows: Mapping[str, Any],
        at_least: int,
        *,
        is_exact: bool = False,
    ) -> Pulled:
        self._check_definition()
        whole = {table: _whole_ids(table, ids) for table, ids in rows.items()}
        splits: dict[str, _Split] = {}

        def requests(count: int) -> list[Request]:
            names: list[list[str] | None] = [None if dense is True else [] for _ in range(count)]
            for name in dense if not isinstance(dense, bool) else ():
                owned = names[server_of_parameter(name, count)]
                assert owned is not None
                owned.append(name)
            splits.update({table: _Split(ids, count) for table, ids in whole.items()})
            header: Header = {"op": "pull", "at_least": at_least, "half": self._half}
            if is_exact and count > 1:
                self._views += 1
                header["view"] = f"{self._identity.task} {self._identity.attempt} {self._views}"
            return [
                (header | {"dense": names[index]}, {IDS + table: split.parts[index] for table, split in splits.items()})
                for index in range(count)
            ]

        answers = servers.ask(requests, is_together=is_exact)
        joined = {
            table: split.joined([answer.arrays[ROWS + table] for answer in answers]) for table, split in splits.items()
        }
        versions = [int(answer.header["version"]) for answer in answers]
        return Pulled(min(versions), max(versions), _parameters(answers), joined)

    def _check_definition(self) -> None:
        """Refuse to wait for servers to be defined: they may wait for this very client."""
        if self.definition is None:
            raise ServerError("nothing is defined yet: call define first")

    def _clipped(
        self, dense: Mapping[str, Any], rows: Mapping[str, tuple[Any, Any]]
    ) -> tuple[Mapping[str, Any], Mapping[str, tuple[Any, Any]]]:
        limit = self.definition.updates.clip_norm if self.definition is not None else None
        if limit is None:
            return dense, rows
        gradients = [numpy.asarray(gradient, numpy.float32) for gradient in dense.values()]
        gradients += [numpy.asarray(gradient, numpy.float32) for _, gradient in rows.values()]
        clipped = clip_by_global_norm(gradients, limit)
        of_dense = dict(zip(dense, clipped, strict=False))
        of_rows = zip(rows.items(), clipped[len(dense) :], strict=True)
        return of_dense, {table: (ids, gradient) for (table, (ids, _)), gradient in of_rows}

    def _split_push(
        self, dense: Mapping[str, Any], rows: Mapping[str, tuple[Any, Any]], servers: int
    ) -> list[dict[str, Any]]:
        kind = numpy.float16 if self._half else numpy.float32
        drafts: list[dict[str, Any]] = [{} for _ in range(servers)]
        for name, gradient in dense.items():
            drafts[server_of_parameter(name, servers)][DENSE + name] = numpy.asarray(gradient, kind)
        for table, (ids, gradients) in rows.items():
            split, array = _Split(_whole_ids(table, ids), servers), numpy.asarray(gradients, kind)
            if len(array) != len(ids):
                raise ValueError(f"table {table!r} has gradients for {len(array)} ids, and {len(ids)} ids")
            values = split.divided(array)
            for draft, part, value in zip(drafts, split.parts, values, strict=True):
                if len(part):
                    draft[IDS + table], draft[ROWS + table] = part, value
        return drafts


class Servers:
    """The connections of one thread to all servers, as many as there are now. `find`: returns the addresses of those of the beginning."""

    def __init__(self, find: Callable[[], Addresses], identity: Identity, patience: float) -> None:
        self._find, self._identity, self._patience = find, identity, patience
        self._told: list[Sequence[str]] = []  # addresses, by server 0
        self._is_defined = False
        self.links = [self._link(index) for index in range(len(find()))]

    def again(self) -> Servers:
        """Return the same servers for another thread."""
        other = Servers(self._find, self._identity, self._patience)
        other._told = self._told
        other.links = [other._link(index) for index in range(len(self.links))]
        other.be_defined(self._is_defined)
        return other

    def be_defined(self, is_defined: bool) -> None:
        """Note whether the servers must be defined, also when they come back."""
        self._is_defined = is_defined
        for link in self.links:
            link.must_be_defined = is_defined and link.index == 0

    def ask(self, requests: Callable[[int], Sequence[Request]], *, is_together: bool = False) -> list[Message]:
        """Send a request to each server, and return the answers. `requests`: returns them for so many servers; fewer are for the first
        ones. It is asked again where rows have moved to another number of servers meanwhile. Raises ServerError.
        """
        deadline = time.monotonic() + self._patience
        while True:
            messages = requests(len(self.links))
            try:
                return self._ask(self.links[: len(messages)], messages, deadline, is_together)
            except Moved:
                self._follow()
            except _AskedApart:
                self.close()

    def ask_first(self, header: Header, arrays: Mapping[str, Any] | None = None) -> Message:
        (answer,) = self.ask(lambda servers: [(header, arrays or {})])
        return answer

    def ask_each(self, header: Header) -> list[Message]:
        return self.ask(lambda servers: [(header, {})] * servers)

    def close(self) -> None:
        for link in self.links:
            link.close()

    def _follow(self) -> None:
        """Take over the present placement, as server 0 tells it."""
        self.close()
        time.sleep(_PAUSES[0])
        asking = _Link(0, 0, self._addresses, self._identity)
        try:
            (answer,) = self._ask([asking], [({"op": "placement"}, {})], time.monotonic() + self._patience)
        finally:
            asking.close()
        self._told = answer.header["addresses"]
        self.links = [self._link(index) for index in range(answer.header["servers"])]
        self.be_defined(self._is_defined)

    def _check_number(self, away: _Link) -> None:
        """Raise Moved where there are not as many servers any more: then one that is away may have gone for good."""
        if away.index:
            asking = _Link(0, away.servers, self._addresses, self._identity)
            with contextlib.suppress(OSError):  # server 0 is away too
                asking.open()
            asking.close()

    def _link(self, index: int) -> _Link:
        servers = len(self._told) or len(self._find())
        return _Link(index, servers, self._addresses, self._identity)

    def _addresses(self, index: int) -> Sequence[str]:
        """Return the addresses where a server may be: those known here, then those that server 0 reported."""
        known = self._find()
        addresses: list[str] = []
        for way in (known, self._told):
            if index < len(way):
                place = way[index]
                addresses += [place] if isinstance(place, str) else place
        return list(dict.fromkeys(addresses))

    def _ask(
        self, links: Sequence[_Link], requests: Sequence[Request], deadline: float, is_together: bool = False
    ) -> list[Message]:
        """Send a request to each server, and return the answers; again to whoever went away meanwhile. Raises ServerError.

        `is_together`: an answer may depend on what another server is sent here, so where one is away _AskedApart is raised. Without it none
        may: one that is away would keep the others waiting.
        """
        answers: dict[int, Message] = {}
        pending = list(zip(links, requests, strict=True))
        pause, began = _PAUSES[0], time.monotonic()
        with contextlib.ExitStack() as phase:
            while pending:
                try:
                    lost = _ask_once(pending, answers, max(1.0, deadline - time.monotonic()), is_together)
                except BaseException:  # answers that nobody reads would be those of the next request
                    for link in links:
                        link.close()
                    raise
                if not lost:
                    break
                link, _, error = lost[0]
                if time.monotonic() > deadline:
                    raise ServerGone(
                        f"parameter server {link.index} has not answered for {self._patience:g} s ({error}): it has ended or hangs, or"
                        " the network to it is cut; what it has printed says more. One that was killed while it was to leave comes back,"
                        " with its rows, where `tm scale` asks for the former number of servers"
                    )
                self._check_number(link)
                if time.monotonic() > began + _SHOWN_AFTER:
                    phase.enter_context(runtime.phase(f"waiting for parameter server {link.index}"))
                    began = math.inf
                time.sleep(_PAUSES[1] if is_together else pause)
                if is_together:
                    raise _AskedApart
                pause = min(2 * pause, _PAUSES[1])
                pending = [(link, request) for link, request, _ in lost]
        return [answers[link.index] for link in links]


class _AskedApart(Exception):
    """A server was away while all were asked together."""


def _ask_once(
    pending: Sequence[tuple[_Link, Request]], answers: dict[int, Message], limit: float, is_together: bool
) -> list[tuple[_Link, Request, OSError]]:
    """Send each request, add the answers to `answers`, and return the requests whose server is away, or has not answered within `limit` s;
    `is_together`: the first one alone.
    """
    lost = []
    for link, request in pending:
        try:
            link.send(*request, limit)
        except ServerError:
            raise
        except OSError as error:
            link.close()
            lost.append((link, request, error))
            if is_together:
                return lost
    for link, request in _as_they_answer(pending, limit) if is_together else pending:
        if link.is_open:
            try:
                answers[link.index] = link.receive()
            except ServerError:
                raise
            except OSError as error:
                link.close()
                lost.append((link, request, error))
                if is_together:
                    return lost
    return lost


def _as_they_answer(pending: Sequence[tuple[_Link, Request]], limit: float) -> Iterator[tuple[_Link, Request]]:
    """Yield each request whose link has something to read: an answer, or its end, for which the others may wait in vain. Behind `limit` s
    without any, yield one that times out.
    """
    with selectors.DefaultSelector() as selector:
        for link, request in pending:
            selector.register(link.open().socket, selectors.EVENT_READ, (link, request))
        while selector.get_map():
            ready = [key.data for key, _ in selector.select(limit)]
            if not ready:
                ready = [next(iter(selector.get_map().values())).data]
                ready[0][0].open().socket.settimeout(_AT_ONCE)
            for link, request in ready:
                selector.unregister(link.open().socket)
                yield link, request


class _Link:
    """The connection to one server. It is made when something is to be sent, and made anew after `close`."""

    def __init__(self, index: int, servers: int, find: Callable[[int], Sequence[str]], identity: Identity) -> None:
        self.index, self.servers, self._find, self._identity = index, servers, find, identity
        self.must_be_defined = False  # the server was defined, and must be when it comes back
        self._connection: Connection | None = None
        self._answer_size = 1  # bytes of the largest answer's payload so far

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self) -> Connection:
        """Return the connection, made where there is none. Raises what `send` does."""
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def send(self, header: Header, arrays: Mapping[str, Any], limit: float) -> None:
        """Send a message, whose answer has `limit` s. Raises OSError where the server is away, ServerError where it wants nothing of us."""
        connection = self.open()
        connection.socket.settimeout(limit)
        if connection.is_local:
            _, _, size = parts_of(arrays)
            if size > connection.room(TO_SERVER):
                connection.offer_region(TO_SERVER, size)
            if self._answer_size > connection.room(TO_WORKER):
                connection.offer_region(TO_WORKER, self._answer_size)
        connection.send(header, arrays, TO_SERVER)

    def receive(self) -> Message:
        assert self._connection is not None
        try:
            message = self._connection.receive()
        except Malformed as error:
            self.close()
            raise ServerError(f"parameter server {self.index}: {error}") from error
        assert message is not None
        if message.header.get("kind") == AGAIN:
            raise ConnectionError(message.header["error"])
        if "error" in message.header:
            if message.header.get("kind") == "refused":
                self.close()
            text = f"parameter server {self.index}: {message.header['error']}"
            raise _ERRORS.get(message.header.get("kind"), ServerError)(text)
        self._answer_size = max(self._answer_size, message.payload)
        return message

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> Connection:
        addresses, certificate = self._find(self.index), self._identity.certificate
        return first_reached(addresses, certificate, f"parameter server {self.index}", self._greet)[0]

    def _greet(self, connection: Connection) -> None:
        identity = self._identity
        hello: Header = {
            "op": "hello",
            "role": "worker",
            "token": identity.token,
            "task": identity.task,
            "attempt": identity.attempt,
        }
        if (
            self.index
        ):  # workers begin behind all servers, so they know where server 0 is; another server may have begun before it
            hello["leader"] = list(self._find(0))
        connection.send({**hello, "index": self.index, "servers": self.servers})
        try:
            answer = connection.receive()
        except Malformed as error:
            raise ServerError(f"parameter server {self.index}: {error}") from error
        assert answer is not None
        check_index(answer, self.index)
        if answer.header.get("kind") == MOVED:
            raise Moved
        if "error" in answer.header:
            raise ServerError(f"parameter server {self.index}: {answer.header['error']}")
        if self.must_be_defined and not answer.header["is_defined"]:
            raise StateLost(
                f"parameter server {self.index} came back without what it had: give the servers a directory for checkpoints and logs,"
                " or begin the training again"
            )


def _seeds(table: str, ids: Integers, rows: Floats, servers: int) -> list[Request]:
    split = _Split(ids, servers)
    arrays = zip(split.parts, split.divided(rows), strict=True)
    return [({"op": "seed"}, {IDS + table: part, ROWS + table: values}) for part, values in arrays]


def _parameters(answers: Sequence[Message]) -> dict[str, Floats]:
    """Return the parameters in answers, as copies."""
    return {
        key.removeprefix(DENSE): array.astype(numpy.float32)
        for answer in answers
        for key, array in answer.arrays.items()
        if key.startswith(DENSE)
    }


def _whole_ids(table: str, ids: Any) -> Integers:
    """Return ids as int64. Raises BadIds where they are not whole numbers in one dimension."""
    array = numpy.asarray(ids)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise BadIds(
            f"ids of table {table!r} must be whole numbers in one dimension, and are {array.dtype} of shape {array.shape}"
        )
    if array.dtype == numpy.uint64 and array.size and int(array.max()) >= 2**63:
        raise BadIds(f"ids of table {table!r} must be below 2**63, and one is {array.max()}")
    return numpy.ascontiguousarray(array, numpy.int64)


class _Split:
    """Ids by server."""

    def __init__(self, ids: Integers, servers: int) -> None:
        self._order: Integers | None = None
        self._bounds = [0, len(ids)]
        if servers > 1:
            owners = servers_of_rows(ids, servers).astype(numpy.uint16)
            self._order = owners.argsort(kind="stable")
            counts = numpy.bincount(owners, minlength=servers)
            self._bounds = [0, *numpy.cumsum(counts).tolist()]
        self.parts: list[Any] = self.divided(ids)

    def divided(self, array: NDArray[Any]) -> list[NDArray[Any]]:
        if self._order is not None:
            array = array.take(self._order, axis=0)
        return [array[begin:end] for begin, end in zip(self._bounds, self._bounds[1:], strict=False)]

    def joined(self, parts: Sequence[NDArray[Any]]) -> Floats:
        """Return the rows of all servers in the order of the ids, as copies."""
        if self._order is None:
            return parts[0].astype(numpy.float32)
        joined = numpy.empty((self._bounds[-1], parts[0].shape[1]), numpy.float32)
        for begin, end, part in zip(self._bounds, self._bounds[1:], parts, strict=False):
            joined[self._order[begin:end]] = part
        return joined


def deduplicated(ids: Any) -> tuple[Integers, Integers]:
    """Return the distinct ids of an array of any shape, and for each id its place among these, in the array's shape."""
    array = numpy.asarray(ids, numpy.int64)
    distinct, places = numpy.unique(array, return_inverse=True)
    return distinct, places.reshape(array.shape)


def summed(places: Integers, gradients: Any, count: int) -> Floats:
    """Return the sum of the gradients of each of `count` distinct ids, (count, dimension). `gradients`: of (*places.shape, dimension)."""
    array = numpy.asarray(gradients, numpy.float32)
    flat = array.reshape(-1, array.shape[-1])
    if not count:
        return numpy.zeros((0, array.shape[-1]), numpy.float32)
    rows, sums = sum_by_row(numpy.ascontiguousarray(places.reshape(-1), numpy.int64), flat)
    if len(rows) == count:
        return sums
    total = numpy.zeros((count, array.shape[-1]), numpy.float32)
    total[rows] = sums
    return total
