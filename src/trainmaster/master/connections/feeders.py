"""Answer feeders and the driver whose tasks they are: which ring gets which batches, what was read, where a feed ends.

They ask by REST (`POST .../actions/supply`), agents report their rings over their channel, and the log says what was read.
`core.input.feeding` decides what follows from all that. A question whose answer is not known yet waits for `HELD` seconds at most; then the
answer is `wait`, and the same question comes again.

    {op: begin, role, feed, partitions, key}                                -> {round}
    {op: drop, role, feed, round}                                           -> {do}, and nothing of the round is lost any more
    {op: claim, role, feed, round, partition, batch, feeder, size, rows...}  -> an answer of `Feed.claim`, or fail {why}
    {op: exchange, role, feed, feeder, size, rows, host, gone}               -> an answer of `Feed.exchange`, or fail {why}
    {op: settle, role, feed, round, partition, feeder, count, supplies}     -> an answer of `Feed.settle`, or fail {why}
    {op: figures, role, feed, round, wait}                                  -> {do, read, lost, why}
    {op: rounds, role, feed}                                                -> {do, open, lost}, see `Feed.rounds`
    {op: readers, role, feed, there}                                        -> {granted, least}, once these are there, or are not
    {op: end, role, feed}                                                   -> {do: done, rows}, once it was read; or lost
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from trainmaster.core.input.feeding import Claim, Feed, RingKey
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.phases import COMMITTING, DONE, EXITED, UPLOADED
from trainmaster.core.machine.reasons import words
from trainmaster.core.machine.report import status, waiting
from trainmaster.core.machine.state import GRANTED
from trainmaster.core.machine.stimuli import FeedEnded
from trainmaster.words.text import failure_lines

if TYPE_CHECKING:
    from trainmaster.master.connections.agents import Connection
    from trainmaster.master.shell import Shell

HELD = 10.0  # s
_OVER = frozenset({EXITED, UPLOADED, COMMITTING, DONE})  # phases in which a program has ended well
_WORD = {
    "host": str,
    "socket": str,
    "address": str,
    "supply": int,
    "delivered": int,
    "room": int,
    "largest": int,
    "stopped": bool,
}
_CLAIM = {"round": int, "partition": int, "batch": int, "feeder": int, "size": int, "rows": int}
_OPTIONS = {"host": str, "full": str, "has_waited": bool, "gone": list, "unreachable": list}
_SETTLE = {"round": int, "partition": int, "feeder": int, "count": int, "supplies": list}


class Feeders:
    """The feeds of one job."""

    def __init__(self, host: Shell) -> None:
        self._host = host
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._sent: dict[tuple[str, RingKey], Any] = {}  # feed's name and ring -> the limits that its agent was sent
        self._changed = asyncio.Event()
        self._operations: dict[str, Callable[[Feed, Mapping[str, Any]], Mapping[str, Any] | None]] = {
            "begin": self._begin, "drop": self._drop, "claim": self._claim, "exchange": self._exchange,
            "settle": self._settle, "figures": self._figures, "rounds": self._rounds,
            "readers": self._readers, "end": self._end,
        }  # fmt: skip

    async def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one question. Raises ValueError where it is malformed."""
        decide = self._operations.get(str(question.get("op")))
        if decide is None:
            raise ValueError(f"{str(question.get('op'))[:40]!r} is not one of {', '.join(self._operations)}")
        feed = self._feed(question)
        feed.advance(self._expected(*self._key(question)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HELD):
                while True:
                    try:
                        reply = self._end_of_job(feed, question) or decide(feed, question)
                    except LookupError:
                        raise ValueError(
                            "there is no such round or partition: a master that began anew knows none"
                        ) from None
                    if reply is not None:
                        self._settle_all()
                        return reply
                    await self._changed.wait()
                    if question["op"] == "claim":  # what it said of a full ring is older than the agent's word
                        question = {**question, "has_waited": True}
        gone = tuple(question["gone"]) if question.get("gone") else None
        return {"do": "wait", "why": self._wait_words(question), "ring_lives": gone in feed.rings}

    def heard(self, connection: Connection, message: Mapping[str, Any]) -> None:
        """Take in an agent's report of its rings. Raises ValueError or LookupError where it is malformed."""
        task = self._host.state.tasks[connection.task]
        if message["attempt"] != task.attempt or task.phase in _OVER:
            return
        key = (task.key, task.attempt)
        for name, word in dict(message["feeds"]).items():
            _check(word, _WORD)
            if message.get("anew"):
                self._sent.pop((name, key), None)
            self._feeds_of(task.role)[name].heard(key, word)
        self._settle_all()

    def follow(self, events: Iterable[Event]) -> None:
        """Follow what is on the log by now."""
        if not any(role.feed for role in self._roles()):
            return
        for event in events:
            self._follow(event.type, event.data)
        self._settle_all()

    # -- inside --

    def _follow(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == "feed-read":
            self._feeds_of(data["task"].rpartition(":")[0])[data["feed"]].has_read(data["read"])
        elif kind == "feed-ended":
            self._feeds_of(data["role"])[data["feed"]].end()
        elif kind == "generation-formed":
            tasks = self._host.state.tasks
            for role in {tasks[task].role for task, *_ in data["members"]}:
                for feed in self._feeds_of(role).values():
                    if not any(
                        tasks[task].attempt == attempt for task, attempt in feed.rings
                    ):  # elastic programs go on
                        feed.restart("its group began anew")
        elif kind in ("exited", "attempt-ended", "attempt-written-off"):
            task, reason = data["task"], data.get("reason", "exit")
            why = f"{task}, attempt {data['attempt']}, ended: {words(reason, {**(data.get('figures') or {}), 'task': task})}"
            for feed in self._feeds_of(task.rpartition(":")[0]).values():
                feed.lose((task, data["attempt"]), why)

    def _settle_all(self) -> None:
        """Do what follows from a change: raise permits, tell agents, end what nobody wants any more, wake those who wait."""
        for (role, name), feed in self._feeds.items():
            feed.advance(self._expected(role, name))
            if feed.has_stopped and not feed.is_fixed:
                self._host.tell(FeedEnded(role, name, feed.fix()))
            for key, limits in feed.limits().items():
                if self._sent.get((name, key)) != limits and (connection := self._host.agents.of(key[0])) is not None:
                    message = {
                        "type": "feeds",
                        "epoch": self._host.epoch,
                        "attempt": key[1],
                        "limits": {name: list(limits)},
                    }
                    if connection.send(message):
                        self._sent[name, key] = limits
        self._changed.set()
        self._changed = asyncio.Event()

    def _expected(self, role: str, name: str) -> list[str]:
        """Return the tasks whose programs read a feed, or are still to begin. `role`: its own; others may share it."""
        tasks = [task for other in self._readers_of(role, name) for task in self._host.state.members_of(other.name)]
        return [task.key for task in tasks if not task.final and task.phase not in _OVER]

    def _readers_of(self, role: str, name: str) -> list[Any]:
        """Return the roles that read a feed. `role`: its own."""
        return [other for other in self._roles() if name in other.feed and role in (other.name, other.feed[name].share)]

    def _roles(self) -> Iterable[Any]:
        job = self._host.state.job
        return () if job is None else job.roles.values()

    def _feeds_of(self, role: str) -> dict[str, Feed]:
        roles = self._host.state.known_job.roles
        owners = {name: feed.share or role for name, feed in roles[role].feed.items()}
        return {
            name: self._feeds.setdefault((owner, name), Feed(roles[owner].feed[name].agreed))
            for name, owner in owners.items()
        }

    def _key(self, question: Mapping[str, Any]) -> tuple[str, str]:
        """Return the role that a feed belongs to, and its name."""
        role, name = str(question["role"]), str(question["feed"])
        return self._host.state.known_job.roles[role].feed[name].share or role, name

    def _feed(self, question: Mapping[str, Any]) -> Feed:
        role, name = str(question.get("role")), str(question.get("feed"))
        known = [f"{role.name}.{feed}" for role in self._roles() for feed in role.feed]
        if f"{role}.{name}" not in known:
            raise ValueError(
                f"the job has no feed {name[:64]!r} of role {role[:64]!r}; it has {', '.join(known) or 'none'}"
            )
        return self._feeds_of(role)[name]

    def _end_of_job(self, feed: Feed, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if (ending := self._host.state.ending) is None:
            return None
        if ending["state"] == "succeeded":
            return _read(feed) if question["op"] == "end" and feed.has_ended else {"do": "stop"}
        how = "was killed" if ending["state"] == "killed" else "has failed"
        lines = [f"{self._host.state.id} {how}", *failure_lines(status(self._host.state))]
        return {"do": "fail", "why": "\n".join(lines)}

    def _wait_words(self, question: Mapping[str, Any]) -> str:
        expected = self._expected(*self._key(question))
        late = [task for task in expected if self._host.agents.of(task) is None]
        if not late:
            return "waits for a reader that has room"
        others = f" and {len(late) - 3} more" if len(late) > 3 else ""
        why = waiting(self._host.state)
        return f"waits for {', '.join(late[:3])}{others} to begin, {len(late)} of {len(expected)}" + (
            why and f": {why}"
        )

    # -- questions --

    def _begin(self, feed: Feed, question: Mapping[str, Any]) -> Mapping[str, Any]:
        _check(question, {"partitions": int})
        if feed.has_stopped:
            return {"do": "stop"}
        return {"do": "begin", "round": feed.begin(min(question["partitions"], 10**6), str(question.get("key", "")))}

    def _drop(self, feed: Feed, question: Mapping[str, Any]) -> Mapping[str, Any]:
        _check(question, {"round": int})
        feed.drop(question["round"])
        return {"do": "dropped"}

    def _exchange(self, feed: Feed, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return self._asked(feed.exchange, {**dict.fromkeys(("round", "partition", "batch"), 0), **question})

    def _claim(self, feed: Feed, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return self._asked(feed.claim, question)

    def _asked(self, decide: Callable[[Claim], Any], question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        options = {name: question[name] for name in _OPTIONS if name in question}
        _check(question, _CLAIM)
        _check(options, {name: _OPTIONS[name] for name in options})
        if "gone" in options:
            options["gone"] = (str(options["gone"][0]), options["gone"][1])
        answer: Mapping[str, Any] | None = decide(Claim(**{name: question[name] for name in _CLAIM}, **options))
        return answer

    def _settle(self, feed: Feed, question: Mapping[str, Any]) -> Mapping[str, Any]:
        _check(question, _SETTLE)
        supplies = {(str(task), int(attempt)): int(rows) for task, attempt, rows in question["supplies"]}
        return feed.settle(question["round"], question["partition"], question["feeder"], question["count"], supplies)

    def _figures(self, feed: Feed, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        _check(question, {"round": int, "wait": bool})
        figures = feed.figures(question["round"])
        is_done = figures["partitions"] == figures["read"]
        return {"do": "figures", **figures} if is_done or figures["lost"] or not question["wait"] else None

    def _rounds(self, feed: Feed, question: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"do": "rounds", **feed.rounds()}

    def _readers(self, feed: Feed, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Tell whether the readers have containers: all, or those that an elastic role cannot be without."""
        _check(question, {"there": bool})
        state, (role, name) = self._host.state, self._key(question)
        expected = self._expected(role, name)
        granted = sum(state.tasks[task].hold == GRANTED for task in expected)
        least = min(len(expected), sum(reader.replicas.min for reader in self._readers_of(role, name)))
        is_answer = (granted >= least) == question["there"]
        return {"do": "readers", "granted": granted, "least": least} if is_answer else None

    def _end(self, feed: Feed, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        role, name = self._key(question)
        expected = self._expected(role, name)
        if not (feed.is_fixed and feed.agreed) and feed.has_lost():
            return {"do": "lost"}
        if not feed.is_fixed:
            feed.advance(expected)
            self._host.tell(FeedEnded(role, name, feed.fix()))
        is_over = feed.has_ended and (feed.has_stopped or feed.is_read(expected))
        return _read(feed) if is_over else None


def _read(feed: Feed) -> Mapping[str, Any]:
    """Return the answer that all of an ended feed was read."""
    return {"do": "done", "rows": feed.permit if feed.agreed else None}


def _check(data: Any, shapes: Mapping[str, type]) -> None:
    """Raise ValueError where fields are missing or of another shape."""
    for name, shape in shapes.items():
        value = data.get(name) if isinstance(data, Mapping) else None
        if type(value) is not shape or (type(value) is int and value < 0):
            raise ValueError(f"{name} must be {shape.__name__}, not {str(value)[:40]!r}")
