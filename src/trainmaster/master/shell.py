"""Run the turns of a master (`master.turn`): hand in what arrives, write events onto the log, and carry out what follows.

It decides nothing about the job. A log that cannot be written stops the turns, not the programs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainmaster.core.decide.decisions import act_fault
from trainmaster.core.decide.drive import Drive
from trainmaster.core.decide.elastic import scale_fault
from trainmaster.core.decide.plan import makes_room
from trainmaster.core.errors import NotFound, StorageFailed, TrainmasterError
from trainmaster.core.fold.saving import save_name
from trainmaster.core.machine.actions import Action, CommitFor, Order, Step
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.orders import order_message
from trainmaster.core.machine.phases import LIVE
from trainmaster.core.machine.state import GRANTED, State, Task
from trainmaster.core.machine.stimuli import (
    GivenUp,
    Key,
    KillRequested,
    KillTaskRequested,
    Report,
    SaveRequested,
    ScaleRequested,
    Stimulus,
    StorageLost,
    UserActed,
)
from trainmaster.core.spec.signals import signal_name, signal_number
from trainmaster.engines.containers import Containers
from trainmaster.log.storage import Storage
from trainmaster.master.connections.agents import Agents, Connection
from trainmaster.master.connections.feed import Feed
from trainmaster.master.connections.feeders import Feeders
from trainmaster.master.orders import Orders
from trainmaster.master.pulse import Pulse
from trainmaster.master.record import Record, Superseded
from trainmaster.master.turn import BATCH, Turn, Turns, Work
from trainmaster.plugins import PluginFailed
from trainmaster.web.contract import Unknown

if TYPE_CHECKING:
    from trainmaster.engines.contract import Tokens
    from trainmaster.master.measuring import Measuring

SERVE_AFTER = 0.05  # s of one turn's work after which connections and readers are served
SERVE_FOR = 0.25  # s that they are served between two turns at most, else for as long as the last turn took
SNAPSHOT_EVERY = 20_000  # events
SNAPSHOT_SOONER = 2_000  # where what they cover makes room; some have the last lines of a program in them
KEPT_WITHIN = 10.0  # s that a turn waits for a snapshot
MEASURED_WITHIN = 20.0  # s that the end waits for the last metrics
HEARD_WITHIN = 5.0  # s that agents have to be heard, once the loop goes on after it was held up
SILENCE = frozenset({"gone", "start", "stop", "commit", "leave"})  # the deadlines for agents to tell something
WORD_WITHIN = 2.0  # s for the engine to tell of a container whose agent has called
NEAR_WITHIN = 10.0  # s that asks wait for the inputs to be listed, which says what nodes are near
CALLED_WITHIN = (
    10.0  # s that agents have to call a new master, which may know less of their programs than the one before it
)
HANDED = 5.0  # s that newer tokens are waited for to be kept by an agent
DRAIN = 10.0  # s that readers have, after the end, for what they have not read yet

Act = Callable[[Action], Awaitable[Mapping[str, Any]]]  # carries out a commit or a step
log = logging.getLogger(__name__)


class Shell:
    """The master of one job, once it holds its epoch and has replayed the log."""

    def __init__(
        self, drive: Drive, epoch: int, record: Record, engine: Containers, storage: Storage, orders: Orders, act: Act,
        clock: Callable[[], float], keep: Callable[[State], Coroutine[Any, Any, None]],
    ) -> None:  # fmt: skip
        self.turns = Turns(drive)
        self.drive, self.epoch, self.storage, self.orders = drive, epoch, storage, orders
        self.samples: dict[str, dict[str, Any]] = {}
        self._record, self._engine, self._act, self._clock = record, engine, act, clock
        self._keep, self._kept = keep, drive.state.n
        self._keeping: asyncio.Task[None] | None = None  # the newest snapshot, until it is written
        self._stirred = asyncio.Event()
        self._doing: set[asyncio.Task[None]] = set()
        self._acknowledging: set[asyncio.Future[Any]] = set()
        self._making_room: dict[Step, asyncio.Task[bool]] = {}
        self.storage_trouble = ""
        self._worked = 0.0  # s that the last turn's work took
        self._superseded = False
        self._put_off = False  # whether asks wait until it is known what nodes are near
        self._late: asyncio.TimerHandle | None = None  # the end of that
        self._pulse, self._began = Pulse(), time.monotonic()
        self.agents = Agents(self)
        self.feed = Feed(self)
        self.feeders = Feeders(self)
        self._measuring: Measuring | None = None  # from the first sample on
        self._tokens: Tokens | None = None
        self._handed_back = asyncio.Event()  # an agent has said which tokens it has

    def hold(self, tokens: Tokens) -> None:
        """Hold a cluster's tokens: agents get newer ones whenever there are any; agents that connect later get them too."""
        self._tokens = tokens
        self.feed.further_facts = lambda: {"tokens": tokens.status()}

        def message() -> dict[str, Any] | None:
            newest = tokens.unshared()
            return None if newest is None else {"type": "tokens", **newest}

        def hand_out() -> None:
            if (newer := message()) is not None:
                for connection in self.agents.connections.values():
                    connection.send(newer)

        self.agents.greeting = message
        tokens.listeners.append(hand_out)

    @property
    def state(self) -> State:
        return self.drive.state

    @property
    def directory(self) -> str:
        return str(self.orders.site["storage"])

    @property
    def over(self) -> bool:
        return self.drive.closed

    @property
    def measuring(self) -> Measuring:
        """The job's metrics."""
        if self._measuring is None:
            from trainmaster.master.measuring import Measuring

            self._measuring = Measuring(self.storage, self.epoch, self._clock, self.feed.wake, self.feed.progress)
        return self._measuring

    # -- what comes in --

    def tell(self, *stimuli: Stimulus) -> None:
        self.turns.tell(*stimuli)
        self._stirred.set()
        for stimulus in stimuli:
            if isinstance(stimulus, Report) and stimulus.kind == "progress" and self._is_present(stimulus):
                self.measuring.report(stimulus.task, stimulus.data)

    def _is_present(self, report: Report) -> bool:
        return report.attempt == self.state.tasks[report.task].attempt

    def doubt(self, epoch: int) -> None:
        """Check a higher epoch: any holder of the job's token may name one, but only one that was taken in the storage makes us stop."""
        log.info("an agent has seen epoch %d; the storage is asked for it", epoch)
        self._record.look()

    def superseded(self, epoch: int) -> None:
        log.warning("epoch %d exists; this master, of epoch %d, stops acting", epoch, self.epoch)
        self._superseded = True
        self._stirred.set()

    def trouble(self, detail: str) -> None:
        """Show readers that the log cannot be written (or can again: ""), while turns wait."""
        self.storage_trouble = detail
        for step in makes_room(self.state) if detail else ():
            present = self._making_room.get(step)
            if present is None or (present.done() and not present.result()):
                self._making_room[step] = asyncio.create_task(self._make_room(step))

    async def _make_room(self, step: Step) -> bool:
        """Take a step of the end early; it is taken again in its turn. Return True where it succeeded."""
        try:
            await self._act(step)
        except Exception as error:  # noqa: BLE001  it is tried again while the trouble lasts
            log.warning("%s, to make room, failed: %s", step.name, error)
            return False
        return True

    async def waited_for(self, connection: Connection) -> bool:
        """Wait until the engine grants a container whose agent has called already; return True where the wait was needed.

        A group begins with all that is granted at once, and an agent shows its own container alone. The wait is short: the engine may have
        reported the grant to an earlier master.
        """

        def is_granted() -> bool:
            task = self.state.tasks[connection.task]
            return task.hold == GRANTED and task.serial == connection.serial

        if is_granted():
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WORD_WITHIN):
                await self.feed.until(is_granted)
        return True

    def lost(self, connection: Connection) -> None:
        self.feed.lost(connection)
        if self.agents.of(connection.task) is connection:  # else the agent has another one by now
            self._push(self.turns.lose(connection.task))

    async def receive(self, connection: Connection, message: Mapping[str, Any]) -> None:
        kind = message.get("type")
        if kind == "sample":
            self.samples[connection.task] = {**message, "at": self._clock()}
            self.measuring.sample(connection.task, message)
        elif kind == "log":
            self.feed.piece(message)
        elif kind == "lease":
            name, want = str(message.get("input", "")), int(message.get("want") or 0)
            answer = self.turns.lease(connection.task, message.get("attempt"), name, want, message.get("back") or ())
            connection.send({"type": "lease", "id": message.get("id"), "epoch": self.epoch, **answer})
        elif kind == "waits":
            self._push(self.turns.coordinate(connection.task, message))
        elif kind == "feeds":
            self.feeders.heard(connection, message)
        elif kind == "log-end":
            await self._keep_end(connection, message)
        elif kind == "tokens" and self._tokens is not None:
            now_there = self._tokens.accept(message)
            if now_there["until"] == message.get("until"):
                self._handed_back.set()

    def _push(self, pushes: Mapping[str, dict[str, Any]]) -> None:
        """Tell agents what the waits of programs have come to. One that is not connected tells us its waits again when it is."""
        for task, push in pushes.items():
            if (connection := self.agents.of(task)) is not None:
                connection.send({"type": "waits", "epoch": self.epoch, **push})

    async def _keep_end(self, connection: Connection, message: Mapping[str, Any]) -> None:
        """Keep the end of a log, for an agent that reaches no storage. A full storage loses it: agents do not wait."""
        from trainmaster.log.configmaps import keep_tail

        attempt, data = int(message["attempt"]), base64.b64decode(message["data"])
        try:
            await asyncio.to_thread(keep_tail, self.storage, connection.task, attempt, int(message["bytes"]), data)
        except StorageFailed as error:
            log.warning("the end of %s's log is not kept: %s", connection.task, error.message)
            if error.anchor != "configmaps-full":
                return  # the agent sends it again
        connection.send({"type": "log-end-kept", "attempt": attempt})

    # -- what users do (the `Acts` of the REST interface) --

    async def kill(self, by: str, why: str) -> None:
        self.tell(KillRequested(by, why))
        self._record.hurry()

    async def kill_task(self, task: str, by: str, why: str) -> None:
        known = self._task(task)
        if known.final or known.hold != GRANTED or self.state.ending is not None:
            raise ValueError(f"{task} has no container that could be ended; tm status says what it does")
        self.tell(KillTaskRequested(task, by, why))

    async def scale(self, role: str, size: int | None, by: str) -> None:
        if fault := scale_fault(self.state, role, size):
            raise ValueError(fault)
        self.tell(ScaleRequested(role, size, by))

    async def save(self, by: str = "a user") -> str:
        if self.state.ending is not None:
            raise ValueError("the job has ended, and no program of it has anything to save; its outputs are committed")
        waiting = [stimulus.save for stimulus in self.turns.inbox if isinstance(stimulus, SaveRequested)]
        name = save_name(self.state, self._clock(), waiting)
        self.tell(SaveRequested(name, by))
        return name

    async def renew(self, tokens: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._tokens is None:
            raise ValueError("the job has no tokens: where it runs needs none")
        self._handed_back.clear()
        report = self._tokens.accept(tokens)
        if self.agents.connections:  # a master that follows us gets them from an agent that has them
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._handed_back.wait(), HANDED)
        return report

    async def supply(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self.feeders.answer(question)

    async def dump(self, task: str, by: str = "a user") -> None:
        await self._act_on_program("dump", task, by)

    async def signal(self, task: str, name: str, by: str) -> None:
        await self._act_on_program("signal", task, by, signal_name(signal_number(name)))

    async def _act_on_program(self, action: str, task: str, by: str, detail: str = "") -> None:
        known = self._task(task)
        while fault := act_fault(self.state, task):
            if self.epoch == 1 or known.phase not in LIVE or time.monotonic() - self._began > CALLED_WITHIN:
                raise ValueError(fault)
            await asyncio.sleep(0.05)
        self.tell(UserActed(action, task, by, detail))

    def _task(self, task: str) -> Task:
        if (known := self.state.tasks.get(task)) is None:
            raise Unknown(f"there is no task {task}")
        return known

    async def retry(self, by: str) -> str:
        raise ValueError(f"a master submits no jobs; on the machine that submitted this one: tm retry {self.state.id}")

    async def cut(self, task: str, seconds: float, by: str) -> None:
        self._task(task)
        if not self.state.known_job.chaos:
            raise ValueError("no faults may be let happen to this job: it has chaos: false")
        connection = self.agents.of(task)
        if connection is None or not connection.send({"type": "cut", "seconds": seconds}):
            raise ValueError(f"no agent of {task} is connected; tm status says what it does")
        self.tell(UserActed("cut", task, by, f"{seconds:g} s"))

    # -- turns --

    async def run(self, serving: asyncio.Task[None]) -> None:
        """Turn until the job is closed. Raises Superseded where another master took over, and what `serving` raises."""
        listening = asyncio.create_task(self._listen_to_engine())
        for needed in (listening, serving):
            needed.add_done_callback(lambda _: self._stirred.set())
        keeping = [asyncio.create_task(act) for act in (self._keep_looking(), self._pulse.beat())]
        if self._tokens is not None:
            keeping.append(asyncio.create_task(_kept(self._tokens)))
        try:
            while not self.over:
                await self.turn()
                for needed in (listening, serving):
                    if needed.done() and not self.over:
                        needed.result()  # no master goes on without its engine's changes or its listeners
            await self._drain()
        finally:
            keeping += [self._keeping] if self._keeping is not None else []
            work = [listening, *keeping, *self._doing, *self._acknowledging, *self._making_room.values()]
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            self.agents.close()
            await self._close_metrics()

    async def _close_metrics(self) -> None:
        if self._measuring is not None:
            with contextlib.suppress(TimeoutError):  # the storage hangs
                async with asyncio.timeout(MEASURED_WITHIN):
                    await self._measuring.close()

    async def _keep_looking(self) -> None:
        await self._record.lost()
        self.superseded(self.epoch + 1)

    async def _listen_to_engine(self) -> None:
        async for change in self._engine.changes():
            self.tell(change)

    async def turn(self) -> None:
        """Take in what has come, or wait for it; write what follows, and do it."""
        size = await self._wait()
        if self._superseded:
            raise Superseded
        clock = asyncio.get_running_loop().time
        began = clock()
        turn = self.turns.take(self._clock(), size)
        self._worked = clock() - began
        if turn.events:
            self._measure(turn.events)
            if self.over:  # whoever reads that the job is over finds all its metrics
                await self._close_metrics()
            await self._write(turn)
            await self.feed.publish(turn.events)
            self.feeders.follow(turn.events)
            # A snapshot that knew more than the log would make it read as damaged, once it is restarted from.
            if self._snapshot_due() and self._record.synced >= self.state.n:
                await self._keep_snapshot()
        for pushes in turn.pushes:
            self._push(pushes)
        for key in turn.lost:  # the engine does not reach its node, but we do
            if (connection := self.agents.get(*key)) is not None:
                connection.dismiss()
        n = turn.events[-1].n if turn.events else self.state.n
        asyncio.get_running_loop().call_soon(self._acknowledge, turn.heard, n)
        began = clock()
        await self._perform(self.turns.perform(turn))
        self._worked += clock() - began

    def _measure(self, events: Sequence[Event]) -> None:
        """Take what events tell of metrics; records that are done may be the first that there is."""
        if self._measuring is not None or any(event.type == "shards-done" for event in events):
            self.measuring.follow(events)

    async def _keep_snapshot(self) -> None:
        """Write a snapshot, and wait for it a moment: no turn waits for a cache in a storage that hangs."""
        self._kept = self.state.n
        self._keeping = asyncio.create_task(self._keep(self.state))
        if not (await asyncio.wait([self._keeping], timeout=KEPT_WITHIN))[0]:
            log.warning("the job goes on while a snapshot is still being written after %.0f s", KEPT_WITHIN)

    def _snapshot_due(self) -> bool:
        if self._keeping is not None and not self._keeping.done():
            return False
        grown = self.state.n - self._kept
        return grown >= SNAPSHOT_SOONER and (grown >= SNAPSHOT_EVERY or self.storage.droppable is not None)

    async def _wait(self) -> int | None:
        """Wait for something to do; return the number of stimuli that the next turn takes."""
        if self.turns.inbox:
            # Connections are served between two turns: of ten thousand that open while turns are long, each wants many callbacks.
            await asyncio.sleep(min(self._worked, SERVE_FOR) if self._worked > SERVE_AFTER else 0)
        else:
            wake = self.drive.wake
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wake is None else max(0.0, wake - self._clock())):
                    await self._stirred.wait()
        size: int | None = BATCH
        if (delay := HEARD_WITHIN - self._pulse.since_held_up()) > 0 and self._counts_silence():
            log.warning("this master was held up; agents that called meanwhile are heard first")
            await asyncio.sleep(delay)
            size = None
        self._stirred.clear()
        return size

    def _counts_silence(self) -> bool:
        """Return whether a deadline has passed by which an agent was to have reported something."""
        deadline, wake = self.state.next_deadline(), self.drive.wake
        if deadline is None or wake is None:
            return False
        now = self._clock() + deadline - wake  # by the log's clock
        return any(kind in SILENCE for kind, _ in self.state.due(now))

    async def _write(self, turn: Turn) -> None:
        # The epoch cannot be confirmed either: from here on nothing is begun, and agents refuse the lower of two epochs.
        if self.turns.is_unwritable:
            self._record.leave(turn.events)
            return
        limit = self.state.known_job.timeouts.storage
        try:
            await self._record.append(turn.events, sync=turn.barrier, limit=limit)
        except StorageFailed as error:
            self.turns.fail(error.message)
        except Superseded:
            self.superseded(self.epoch + 1)
            raise
        else:
            if detail := self._record.overdue(limit):
                self.turns.tell(StorageLost(detail))

    def _acknowledge(self, heard: Mapping[Key, int], n: int) -> None:
        if heard:
            task = asyncio.create_task(self._acknowledge_durable(heard, n))
            self._acknowledging.add(task)
            task.add_done_callback(self._acknowledging.discard)

    async def _acknowledge_durable(self, heard: Mapping[Key, int], n: int) -> None:
        if not self.turns.is_unwritable:
            await self._record.durable(n)
        for (task, serial), number in heard.items():
            self.agents.acknowledge(task, serial, number)

    # -- actions --

    async def _perform(self, work: Work) -> None:
        for key in work.releases:
            self._engine.release(*key)
            if (connection := self.agents.get(*key)) is not None:
                connection.dismiss()
        if work.asks is not None or self._put_off:
            self._ask(self.turns.pending() if work.asks is None else work.asks)
        loop = asyncio.get_running_loop()
        pause = loop.time() + SERVE_AFTER
        sent: list[Order] = []
        for order in work.orders:
            if loop.time() >= pause:
                await asyncio.sleep(0)
                pause = loop.time() + SERVE_AFTER
            if self._send(order):
                sent.append(order)
        for step in work.steps:
            task = asyncio.create_task(self._carry_out(step))
            self._doing.add(task)
            task.add_done_callback(self._doing.discard)
        self.turns.sent(sent)

    def _ask(self, containers: Sequence[Key]) -> None:
        """State all asks; put them off, up to `NEAR_WITHIN`, while the nodes near the tasks' data are still unknown."""
        self._put_off = self.orders.unlocated(self.state)
        if self._put_off:
            loop = asyncio.get_running_loop()
            if self._late is None:
                self._late = loop.call_later(NEAR_WITHIN, self._stirred.set)
            if loop.time() < self._late.when():
                return
            self._put_off = False
        self._engine.ask([self.orders.request(self.state, task, serial) for task, serial in containers])

    def _send(self, order: Order) -> bool:
        connection = self.agents.get(order.task, order.serial)
        if connection is None:
            return False
        try:
            payload = self.orders.payload(self.state, order)
        except (PluginFailed, NotFound) as error:  # the framework is another package's, and no task can begin with it
            log.exception("the job is given up")
            self.tell(GivenUp("framework-failed", {"detail": ", ".join(filter(None, (error.message, error.place)))}))
            return False
        message = order_message(self.epoch, order.attempt, order.verb, order.id, **payload)
        return connection.send(message, self.orders.ahead(payload))

    async def _carry_out(self, action: CommitFor | Step) -> None:
        """Carry out a commit in an agent's place, or a step of the beginning or end; `act` bounds its time."""
        result: Mapping[str, Any] = {}
        gave_up = ""
        try:
            result = await self._act(action)
        except (TrainmasterError, OSError, TimeoutError) as error:
            gave_up = getattr(error, "message", "") or str(error) or type(error).__name__
            log.warning("%s was given up: %s", action, gave_up)
        except Exception:
            log.exception("%s failed", action)
            gave_up = "a fault of ours; the master's log has its traceback"
        self.turns.carried_out(action, result, gave_up)
        self._stirred.set()
        await self.feed.wake()

    async def _drain(self) -> None:
        """Let the readers that are still connected hear the end."""
        await self.feed.wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN):
                await self.feed.idle.wait()


async def _kept(tokens: Tokens) -> None:
    try:
        await tokens.keep()
    except Exception:  # the job goes on for as long as it has tokens
        log.exception("nobody fetches newer tokens any more")
