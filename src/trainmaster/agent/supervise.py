"""The agent of one container carries out orders over successive attempts of its task, and ends when it is no longer needed.

Orders are idempotent by (attempt, verb, id): a repeated order, or one for an attempt that is over, does nothing. An order for a later
attempt first ends the earlier one. The agent leaves when ordered to, when its master refuses it, or when its grace has run out (later,
where its program has ended by itself and no master has heard of it). In each case no process of a program is left behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from trainmaster.agent.attempt.attempt import Attempt
from trainmaster.agent.attempt.place import Place
from trainmaster.agent.attempt.threads import DiskThread
from trainmaster.agent.input.leasing import Leasing
from trainmaster.agent.link.channel import Channel, Link
from trainmaster.agent.output.followers import Follows, Source
from trainmaster.agent.output.shipping import Shipping
from trainmaster.agent.output.tails import Tails
from trainmaster.agent.warm.newcomer import warm_up
from trainmaster.core.frames import content_of
from trainmaster.core.machine.orders import ORDERS, BadOrder, order_fields
from trainmaster.core.spec.signals import signal_number
from trainmaster.host.process_tree import Orphans, end_all, kin
from trainmaster.log.output import first_size

LEAVE_WITHIN = 10.0  # s for the last reports to be acknowledged
FLUSHED_WITHIN = 2.0  # s for the same without an order to leave: the master may have let go of us already
CLOSE_WITHIN = 13.0  # s for all of that once the engine, which sends SIGKILL after 15, has asked us to end
SHIP_WITHIN = 20.0  # s for the last piece of the logs
REAP_EVERY = 2.0  # s

log = logging.getLogger(__name__)


class Tokens(Protocol):
    """The tokens of this container on a secure cluster. Newer ones come now and then."""

    def receive(self, message: Mapping[str, Any]) -> None: ...

    def unshared(self) -> dict[str, Any] | None:
        """Return the tokens that a new master may not have."""
        ...


class Agent:
    """The agent turns orders into attempts. It implements `channel.Owner`."""

    def __init__(self, link: Link, container: str = "", node: str = "", close_within: float = CLOSE_WITHIN) -> None:
        self._link = link
        self.channel = Channel(link, self)
        self.channel.holds_end = self._holds_end
        self.leasing = Leasing(self.channel)
        self.why = ""  # why it ended
        self._container, self._node, self._close_within = container, node, close_within
        self._place: Place | None = None
        self._shipping: Shipping | Tails | None = None
        self.tokens: Tokens | None = None
        self._attempts: dict[int, Attempt] = {}
        self._current = 0
        self._done: set[tuple[int, str, str]] = set()
        self._contents: dict[str, str] = {}
        self._turns: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
        self._over = asyncio.Event()
        self._has_left = False  # everything was reported and stored, or given up
        self._hurrying: asyncio.Task[None] | None = None
        self._warming_up: asyncio.Task[None] | None = None

    def settle(self, place: Place, shipping: Shipping | Tails | None) -> None:
        """Give the agent its place. To be called before `run`."""
        self._place, self._shipping = place, shipping
        self.follows = Follows(place.task, self._source, DiskThread().do, self.channel.wake)

    @property
    def place(self) -> Place:
        assert self._place is not None
        return self._place

    # -- the channel's owner --

    def hello(self) -> dict[str, Any]:
        return {
            "task": self.place.task, "serial": self.place.serial, "node": self._node, "container": self._container,
            "address": self.address, "attempt": self._current, "holds": self.place.programs.held(),
        }  # fmt: skip

    @property
    def address(self) -> str:
        if self.channel.address and not self.place.network:
            self.place.address = self.channel.address
        return self.place.address

    def receive(self, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "order":
            self._turns.put_nowait(self._with_contents(message))
        elif kind == "content":  # of a file that the next order needs
            self._contents[str(message["digest"])] = content_of(message).decode()
        elif kind in ("follow", "unfollow", "window"):
            self._follow(kind, message)
        elif kind == "lease":
            self.leasing.answered(message)
        elif kind == "waits":
            self.place.programs.waits.answered(message)
        elif kind == "feeds" and self.place.feeds is not None:
            self.place.feeds.answered(message)
        elif kind == "log-end-kept" and isinstance(self._shipping, Tails):
            self._shipping.receive(message)
        elif kind == "tokens" and self.tokens is not None:
            self.tokens.receive(message)
            self._hand_back_tokens()  # shows the master that they will not be lost with it

    def _with_contents(self, order: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the order together with the large files that came ahead of it."""
        contents = {name: self._contents[digest] for name, digest in order.get("contents", {}).items()}
        self._contents.clear()
        return {**order, "files": {**order["files"], **contents}} if contents else order

    def _follow(self, kind: str, message: Mapping[str, Any]) -> None:
        number = message.get("id")
        if type(number) is not int:
            return
        if kind == "follow":
            attempt, position = int(message.get("attempt", 0)), int(message.get("offset", 0))
            self.follows.follow(number, attempt, position, bool(message.get("once")), bool(message.get("bare")))
        elif kind == "window":
            self.follows.window(number, int(message.get("frames", 1)))
        else:
            self.follows.unfollow(number)
        self.channel.wake()

    def log_piece(self) -> dict[str, Any] | None:
        return self.follows.next()

    def _hand_back_tokens(self) -> None:
        if self.tokens is not None and (tokens := self.tokens.unshared()) is not None:
            self.channel.ask({"type": "tokens", **tokens})

    def connected(self, welcome: Mapping[str, Any]) -> None:
        """Drop the shards that we held and that are no longer ours. A master that follows another gets newer tokens."""
        self._hand_back_tokens()
        if key := welcome.get("key"):
            self.place.feeders_outside = self._link.token, self._link.certificate, str(key)
            self.place.programs.credentials = self.place.programs.credentials._replace(key=str(key))
        drop = welcome.get("drop")
        for name, ranges in drop.items() if isinstance(drop, Mapping) else ():
            self.place.programs.drop(name, ranges)
        self.place.programs.wake()
        self.place.programs.waits.tell(anew=True)
        if self.place.feeds is not None:
            self.place.feeds.tell(anew=True)

    def disconnected(self) -> None:
        self.follows.clear()
        self.leasing.disconnected()

    def over(self, why: str) -> None:
        self.why = self.why or why
        self._over.set()
        self._turns.put_nowait(None)

    def terminated(self) -> None:
        """End because the engine ends us.

        The output is stored first: YARN leaves 250 ms between TERM and KILL, and a program's own end takes longer. The usual end follows,
        as far as time allows; but an attempt that ends by this is reported by the engine, which knows the reason.
        """
        if self._place is not None:
            self._place.going = True
        if self._shipping is not None and self._hurrying is None:
            self._hurrying = asyncio.create_task(self._shipping.hurry())
        self.over("terminated")

    def _holds_end(self) -> bool:
        attempt, outbox = self._attempts.get(self._current), self.channel.outbox
        if attempt is None or attempt.running:
            return False
        return attempt.is_finished or outbox.holds("ended") or outbox.holds("committed")

    # -- messages of programs --

    def progressed(self, value: float | None, step: int | None, metrics: Mapping[str, Any]) -> None:
        if (attempt := self._attempts.get(self._current)) is not None:
            attempt.progressed(value, step, metrics)

    def entered(self, phase: str | None) -> None:
        if (attempt := self._attempts.get(self._current)) is not None:
            attempt.entered(phase)

    def checkpointed(self, state: str, marks: Mapping[str, Any]) -> None:
        if (attempt := self._attempts.get(self._current)) is not None:
            attempt.checkpointed(state, marks)

    async def commit_part(self) -> str:
        attempt = self._attempts.get(self._current)
        return "no attempt runs" if attempt is None else await attempt.commit_part()

    async def begin_state(self, begun: Mapping[str, Any]) -> None:
        self.channel.report("state-begun", self._current, **begun)
        await self.channel.outbox.acknowledged()

    def begun(self, rows: list[list[Any]]) -> None:
        self.channel.report("shards-begun", self._current, begun=rows)

    def counted(self, name: str, counts: list[int]) -> None:
        self.channel.report("input-counted", self._current, input=name, counts=counts)

    # -- the agent's own life --

    async def run(self) -> None:
        """Serve until ordered to leave, refused, or out of grace."""
        await self.place.programs.start()
        background = [
            asyncio.create_task(act) for act in (self.channel.run(), self.channel.watch_grace(), self._reap())
        ]
        if self._shipping is not None:
            background.append(asyncio.create_task(self._shipping.run()))
        for task in background:
            task.add_done_callback(_log_fault)
        try:
            while not self._over.is_set():
                order = await self._turns.get()
                if order is not None:
                    await self._obey(order)
        except Exception:
            log.exception("the agent cannot go on")
            raise
        finally:
            background.append(asyncio.create_task(self._heed_warnings()))
            await self._close(background)

    async def _heed_warnings(self) -> None:
        """Obey warnings during the end: one may come after the engine's signal that it announces, while the program has its grace."""
        while True:
            order = await self._turns.get()
            if order is not None and order.get("verb") == "warn" and order.get("attempt") == self._current:
                await self._obey(order)

    async def _close(self, background: list[asyncio.Task[None]]) -> None:
        log.info("the agent ends: %s", self.why)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._close_within
        await self._end_warm_up()
        for attempt in self._attempts.values():
            await attempt.end(lambda: deadline - loop.time())
        await self.place.end_template()
        await end_all(os.getpid())
        gave_up = ""
        if self._shipping is not None and not self._has_left:
            gave_up = await self._shipping.finish(deadline - loop.time())
        if self.why == "terminated" and not self._has_left:
            self._report_left(self._current, gave_up)  # the engine may see the end of its container much later
        if self.why == "terminated" and not self._has_left and self._link.stay and self.channel.outbox.holds("ended"):
            # No master has the end yet, nor ordered us to leave: the next master would run the whole program again.
            await self.channel.flushed(max(0.0, deadline - loop.time()))
        elif self.channel.connected and not self._has_left:
            await self.channel.flushed(min(FLUSHED_WITHIN, deadline - loop.time()))
        if self._hurrying is not None:
            background.append(self._hurrying)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await self.place.programs.close()
        self.place.workplace.release()
        if self._shipping is not None:
            self._shipping.clear()

    async def _reap(self) -> None:
        orphans = Orphans()
        while True:
            await asyncio.sleep(REAP_EVERY)
            attempt = self._attempts.get(self._current)
            orphans.reap(kin(os.getpid()), attempt.pids if attempt else ())

    def _source(self, number: int) -> Source:
        attempt = self._attempts.get(number)
        path, first = self.place.log(number), first_size(self.place.log_limit, self.place.log_first)
        if attempt is not None and not attempt.logged:
            return Source(path, first, growing=True, printed=attempt.spool.printed)
        return Source(path, first, begun=attempt is not None or number < self._current)

    # -- orders --

    async def _obey(self, order: Mapping[str, Any]) -> None:
        verb, number = str(order.get("verb")), order.get("attempt")
        if verb not in ORDERS or type(number) is not int:
            log.warning("an order that is not known: %s", str(order)[:200])
            return
        key = (number, verb, str(order.get("id", "")))
        if key in self._done:
            return
        self._done.add(key)
        if verb == "leave":
            await self._leave(number)
        elif verb == "warm-up":
            if number > self._current and (self._warming_up is None or self._warming_up.done()):
                self._warming_up = asyncio.create_task(warm_up(self.place, order, number))
                self._warming_up.add_done_callback(_log_fault)
        elif number >= self._current:
            attempt = await self._attempt(number)
            try:
                await _VERBS[verb](self, attempt, order_fields(order))
            except BadOrder as fault:
                await attempt.fail(fault)

    async def _attempt(self, number: int) -> Attempt:
        """Return the attempt, made where it is new. Earlier attempts are ended first."""
        if number not in self._attempts:
            for earlier in self._attempts.values():
                await earlier.end()
            self._attempts = {known: earlier for known, earlier in self._attempts.items() if known >= number - 3}
            attempt = self._attempts[number] = Attempt(number, self.place)
            self.leasing.on_done = attempt.read_shards
            self.place.workplace.attempt = number
            self._current = number
            self.leasing.attempt = number
        return self._attempts[number]

    async def _prepare(self, attempt: Attempt, order: Mapping[str, Any]) -> None:
        await self._end_warm_up()
        attempt.prepare(order)
        if self._shipping is not None:
            self._shipping.follow(attempt.spool, attempt.number)

    async def _start(self, attempt: Attempt, order: Mapping[str, Any]) -> None:
        attempt.start(order)

    async def _end_warm_up(self) -> None:
        """Give up a template that is not made yet."""
        if self._warming_up is not None:
            self._warming_up.cancel()
            await asyncio.wait([self._warming_up])

    async def _stop(self, attempt: Attempt, order: Mapping[str, Any]) -> None:
        number = signal_number(order["signal"]) if order["signal"] else None
        await attempt.stop(number, order["grace"], shows_stacks=bool(order["stacks"]), job_ends=bool(order["over"]))

    async def _commit(self, attempt: Attempt, order: Mapping[str, Any]) -> None:
        attempt.commit(order)

    async def _save(self, attempt: Attempt, order: Mapping[str, Any]) -> None:
        attempt.save(order["id"])

    async def _warn(self, attempt: Attempt, order: Mapping[str, Any]) -> None:
        number = signal_number(order["signal"]) if order["signal"] else None
        attempt.warn(order["seconds"] or 0.0, order["why"], number)

    async def _peer_finished(self, attempt: Attempt, order: Mapping[str, Any]) -> None:
        attempt.peer_finished(order["limit"])

    async def _signal(self, attempt: Attempt, order: Mapping[str, Any]) -> None:
        if order["signal"]:
            attempt.signal(signal_number(order["signal"]), order["by"])

    async def _dump(self, attempt: Attempt, order: Mapping[str, Any]) -> None:
        await attempt.dump()

    async def _leave(self, number: int) -> None:
        """End the attempts, have the logs stored and everything reported; then go."""
        for attempt in self._attempts.values():
            await attempt.end()
        gave_up = ""
        if self._shipping is not None:
            gave_up = await self._shipping.finish(SHIP_WITHIN)
        self._report_left(number, gave_up)
        waits = {asyncio.ensure_future(self.channel.flushed(LEAVE_WITHIN)), asyncio.ensure_future(self._over.wait())}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)  # a master that lets us go has all it needs
        for task in waits:
            task.cancel()
        self._has_left = True
        self.over("left")

    def _report_left(self, attempt: int, gave_up: str) -> None:
        """Report that nothing of a program runs here any more. `gave_up`: the logs that were not stored, "" for none."""
        self.channel.report("left", attempt, logs=not gave_up, gave_up=gave_up)


def _log_fault(task: asyncio.Task[None]) -> None:
    """Log the fault that ended a background task. The program runs on, without a connection, until the grace is over."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the agent failed in its own code", exc_info=error)


_VERBS: dict[str, Callable[[Agent, Attempt, Mapping[str, Any]], Any]] = {
    "prepare": Agent._prepare,
    "start": Agent._start,
    "stop": Agent._stop,
    "commit": Agent._commit,
    "save": Agent._save,
    "warn": Agent._warn,
    "peer-finished": Agent._peer_finished,
    "signal": Agent._signal,
    "dump": Agent._dump,
}
