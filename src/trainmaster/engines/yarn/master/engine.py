"""YARN as a master uses it: the asks of one job, the containers it was given, the ends of both.

The master speaks to the ResourceManager in beats: each tells what has changed of the asks and takes what was granted, what has ended, and
what will be taken back. An ask is one container under an *allocation request id* that says whose it is, (task, serial), so a grant needs no
matching by size (YARN rounds sizes up), and a master that follows knows whose containers it inherits. Asks are absolute: said again they
change nothing, and a ResourceManager that was restarted and knows none of them (`not registered`) is told all again.

A granted container is started on its node at once, with our agent, and told of when it runs. What a dead master was granted and never
started is given back, and asked for anew.

Containers are known by their whole id: the number in it counts from 1 again in each attempt of the application, so a container of a dead
master and one of its successor have the same number. A ResourceManager that was restarted lists containers of earlier attempts late, in
the answers to beats, as their nodes come back to it.

A ResourceManager that was restarted knows the containers of those nodes alone that have come back to it, and says nothing of a release of
any other. So what was given back and is not told to have ended some time later has ended.

An ask that is larger than all nodes that live is refused, and with it all else that the beat says. It may fit a node that comes back, so
it is put off, and told again now and then.

A node on which containers failed by no fault of a program's several times is asked for no more. Containers of an elastic gang are kept
until it is clear with how many it begins (see `gangs`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import attrs

from trainmaster.core.errors import EngineFailed
from trainmaster.core.machine.stimuli import (
    ContainerExited,
    ContainerLost,
    Granted,
    KillRequested,
    Refused,
    Waiting,
    Warned,
)
from trainmaster.core.spec.job import Job
from trainmaster.engines.contract import Change, Free, Holder, Request
from trainmaster.engines.gangs import Gathering
from trainmaster.engines.yarn.master import asks, exits, waiting
from trainmaster.engines.yarn.master.ending import Ending
from trainmaster.engines.yarn.master.nodes import Avoided, Nodes, excluded, racks
from trainmaster.engines.yarn.settings import settings
from trainmaster.hadoop.errors import AuthenticationFailed, HadoopError, RemoteError
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.credentials import Token
from trainmaster.hadoop.yarn import ResourceManager, Scheduler, container_id_text, node_text, token_of

FRESH, JUST = 0.03, 1.0  # s between two beats while something was asked for within the last JUST
PENDING, IDLE = 0.1, 1.0  # s between two beats while something is asked for, and else
EXPLAIN = 2.0  # s that asks wait before it is looked why, and between two looks
AGAIN = 1.0  # s until a beat that failed is tried again
LATER = 10.0  # s until an ask is told again that fits no node now
UNTOLD = 10.0  # s after a release was heard, until what it gave back has ended though nobody says so
_NOT_REGISTERED = "ApplicationMasterNotRegisteredException"
_OVER = ("ApplicationAttemptNotFoundException", "InvalidToken")
_FINAL = {"succeeded": y.APP_SUCCEEDED, "failed": y.APP_FAILED, "killed": y.APP_KILLED}

Key = tuple[str, int]
Spec = Callable[[Request, Sequence[str]], Mapping[str, Any]]
Context = Callable[[Mapping[str, Any]], y.ContainerLaunchContextProto]
log = logging.getLogger(__name__)


@attrs.define(slots=True, eq=False)
class _Held:
    """A container that is ours."""

    proto: y.ContainerProto
    node: str
    running: bool = False
    returned: bool = False
    heard: float | None = None  # when the ResourceManager was told that it is given back

    @property
    def id(self) -> str:
        return container_id_text(self.proto.id)


class YarnMaster:
    """`MasterSide` on YARN. `context(spec)` makes an agent's launch context of what it is given, `scheduler(token)` a connection to the
    ResourceManager, which changes the master's token now and then; `protection` as `conf.rpc_protection` gives it; `tracking` says the
    job's page.
    """

    def __init__(
        self, job: Job, spec: Spec, context: Context, scheduler: Callable[[Token], Scheduler], token: Token, manager: ResourceManager,
        protection: Sequence[str], tracking: Callable[[], str] = lambda: "", preemption: float = 15.0, ending: Ending | None = None,
    ) -> None:  # fmt: skip
        self._numbers, self._spec, self._context = asks.Numbers(job), spec, context
        self._scheduler_for, self._scheduler = scheduler, scheduler(token)
        self._manager, self._tracking, self._ending = manager, tracking, ending
        self._preemption = preemption  # s between a warning and its end
        self._queue = ""
        self._nodes = Nodes(protection)
        self._wanted: dict[Key, Request] = {}
        self._rows: dict[Key, asks.Rows] = {}  # as they were asked for last
        self._gathering = Gathering(lambda: asyncio.get_running_loop().time())
        self._held: dict[Key, _Held] = {}
        self._by_container: dict[str, Key] = {}
        self._changed: dict[Key, asks.Rows] = {}
        self._put_off: dict[Key, float] = {}  # asks that fit no node now -> when they are told again
        self._returned: dict[str, y.ContainerIdProto] = {}  # given back, until the beat that says so was answered
        self._avoided = Avoided(excluded(job))
        self._cluster = 0  # nodes
        self._warned: set[str] = set()
        self._response = 0
        self._changes: asyncio.Queue[Change | BaseException] = asyncio.Queue()
        self._stirred = asyncio.Event()
        self._work: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        self._asked = 0.0  # when something was asked for last
        self._largest = y.ResourceProto()
        self._units: Mapping[str, str] = {}
        self._label = settings(job.engines.get("yarn") or {}).label  # of containers whose role names none
        self._left = y.ResourceProto()  # what our user may still have in the queue, as the last beat told

    # -- the contract --

    async def open(self, epoch: int) -> Sequence[Holder]:
        answer = await self._register()
        self._queue, self._largest = answer.queue, answer.maximumCapability
        self._units = {one.name: one.units for one in answer.resource_types}
        running = await self._nodes.running(answer.containers_from_previous_attempts)
        for container in sorted(
            answer.containers_from_previous_attempts, key=lambda each: container_id_text(each.id) not in running
        ):  # of two for the same ask, the one that runs is kept
            self._inherit(container)
        holders = []
        for key, held in list(self._held.items()):
            if held.id in running:
                held.running = True
                holders.append(Holder(*key, held.id, held.node))
            else:
                self._give_back(key)
        self._beating = self._begin(self._beat())
        if self._ending is not None:
            self._ending.heed(self._killed)
        return holders

    async def ask(self, requests: Sequence[Request]) -> None:
        wanted = {(one.task, one.serial): one for one in requests}
        for key in self._wanted.keys() - wanted.keys():
            self._withdraw(key)
        new = [key for key in wanted if key not in self._wanted]
        if new:
            self._asked = asyncio.get_running_loop().time()
        self._gathering.know(wanted[key] for key in new)
        on_racks = await racks(self._manager) if any(wanted[key].hosts for key in new) else {}
        for key in new:
            held = self._held.get(key)
            if held is None:
                self._wanted[key] = wanted[key]
                self._rows[key] = self._changed[key] = asks.ask_for(
                    self._numbers.of(*key), wanted[key], on_racks, self._units
                )
            elif held.running:
                self._tell(Granted(*key, held.id, held.node))
        self._stirred.set()

    async def release(self, task: str, serial: int) -> None:
        key = (task, serial)
        if key in self._held:
            self._give_back(key)
        else:
            if key in self._wanted:
                self._withdraw(key)
            self._tell(ContainerExited(*key, None, "not-needed"))
        self._stirred.set()

    def _withdraw(self, key: Key) -> Request:
        request = self._wanted.pop(key)
        self._changed[key] = asks.withdrawal(self._rows.pop(key))
        return request

    async def changes(self) -> AsyncIterator[Change]:
        while True:
            change = await self._changes.get()
            if isinstance(change, BaseException):
                raise change
            yield change

    async def free(self) -> Sequence[Free]:
        return await waiting.free(self._manager)

    async def close(self, state: str) -> None:
        for key in list(self._held):
            self._give_back(key)
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        request = y.FinishApplicationMasterRequestProto(
            final_application_status=_FINAL[state], tracking_url=self._tracking()
        )
        while not await self._unregistered(request):  # noqa: ASYNC110  it has to be asked
            await asyncio.sleep(PENDING)
        await self._nodes.close()
        await self._scheduler.close()
        await self._manager.close()

    async def _unregistered(self, request: y.FinishApplicationMasterRequestProto) -> bool:
        """Whether the ResourceManager has heard of our end. One that is away is told when it is back, as often as it takes."""
        try:
            await self._say_what_changed()
            return (await self._scheduler.finish_application_master(request)).isUnregistered
        except AuthenticationFailed:  # our token is of no use any more: it has heard it, and its answer was lost
            return True
        except RemoteError as error:
            if (name := error.class_name.rpartition(".")[2]) in _OVER:
                return True
            log.warning("the ResourceManager does not take our end yet: %s", error)
            if asks.is_of_an_ask(error):
                self._changed.clear()  # all asks end with us
            if name == _NOT_REGISTERED:
                with contextlib.suppress(HadoopError):
                    await self._register()
        except HadoopError as error:
            log.warning("the ResourceManager cannot be told of our end yet: %s", error)
            await asyncio.sleep(AGAIN)
        return False

    # -- beats --

    async def _register(self) -> y.RegisterApplicationMasterResponseProto:
        request = y.RegisterApplicationMasterRequestProto(host="", rpc_port=-1, tracking_url=self._tracking())
        answer = await self._scheduler.register_application_master(request)
        self._response = 0
        self._nodes.take(answer.nm_tokens_from_previous_attempts)
        return answer

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        while True:
            try:
                self._tell_put_off()
                self._take(await self._say_what_changed())
                self._write_off()
            except RemoteError as error:
                await self._refused(error)
            except HadoopError as error:
                log.warning("the ResourceManager cannot be asked: %s", error)
                self._tell(Waiting("resource manager", "", "", f"the ResourceManager cannot be reached: {error}"))
                await asyncio.sleep(AGAIN)
            if not self._wanted:
                asked = loop.time()
            elif loop.time() - asked > EXPLAIN:
                asked = loop.time()
                self._begin(self._explain())
            try:
                async with asyncio.timeout(self._pause()):
                    await self._stirred.wait()
            except TimeoutError:
                continue

    def _pause(self) -> float:
        if self._wanted and asyncio.get_running_loop().time() - self._asked < JUST:
            return FRESH
        return PENDING if self._wanted or self._returned or self._gathering else IDLE

    async def _say_what_changed(self, size: asks.Size | None = None) -> y.AllocateResponseProto:
        """A beat; of the asks those of one size alone, where one is given."""
        self._stirred.clear()
        changed = {key: rows for key, rows in self._changed.items() if size in (None, asks.size_of(rows))}
        self._changed = {key: rows for key, rows in self._changed.items() if key not in changed}
        returned = dict(self._returned)
        request = y.AllocateRequestProto(
            response_id=self._response, ask=chain(*changed.values()), release=list(returned.values()),
            blacklist_request=self._avoided.message(),
        )  # fmt: skip
        try:
            answer = await self._scheduler.allocate(request)
        except BaseException:
            self._changed = changed | self._changed
            raise
        for container in returned:
            self._returned.pop(container, None)
            if (key := self._by_container.get(container)) is not None and self._held[key].heard is None:
                self._held[key].heard = asyncio.get_running_loop().time()
        self._response = answer.response_id
        return answer

    async def _refused(self, error: RemoteError) -> None:
        """The ResourceManager's word: it knows us not since it was restarted, or our attempt is over, or an ask is none it ever grants."""
        name = error.class_name.rpartition(".")[2]
        if name == _NOT_REGISTERED:
            log.warning("the ResourceManager was restarted; it is told all again")
            try:
                answer = await self._register()
            except HadoopError as away:
                log.warning("the ResourceManager cannot be told yet: %s", away)
                await asyncio.sleep(AGAIN)
                return
            self._begin_anew()
            self._begin(self._adopt(answer.containers_from_previous_attempts))
        elif name in _OVER:
            if self._ending is not None and (why := await self._ending.killed()):
                self._killed(why)
            else:
                self._changes.put_nowait(EngineFailed(f"YARN has ended this master: {error}", anchor="master-ended"))
            raise asyncio.CancelledError
        elif asks.is_of_an_ask(error):
            if not self._drop_impossible(error):
                await self._put_off_too_large()
        else:
            log.warning("the ResourceManager refuses: %s", error)
            await asyncio.sleep(AGAIN)

    def _killed(self, why: str) -> None:
        """YARN has killed the application, and ends all its containers; there is a moment left to write that."""
        self._tell(KillRequested("yarn", why))
        for key in self._held:
            self._tell(ContainerExited(*key, None, "killed-by-engine"))

    def _drop_impossible(self, error: RemoteError) -> bool:
        """Refuse the asks for a size, a resource or a label that is never granted; whether there are any."""
        dropped = [
            key for key, one in self._wanted.items()
            if "Label" in error.name or not asks.fits(asks.resource_of(one, self._units), self._largest)
        ]  # fmt: skip
        for key in dropped:
            del self._wanted[key], self._rows[key]
            self._changed.pop(key, None)
            self._tell(Refused(*key, str(error)))
        return bool(dropped)

    async def _put_off_too_large(self) -> None:
        """Tell what has changed size by size, and put off what is refused. A withdrawal of such an ask is left out: what is granted all the
        same goes back."""
        for size in dict.fromkeys(map(asks.size_of, self._changed.values())):
            try:
                self._take(await self._say_what_changed(size))
            except RemoteError as error:
                if not asks.is_of_an_ask(error):
                    return  # the next beat meets it, too
                log.warning("the ResourceManager grants nothing of this size now: %s", error)
                later = asyncio.get_running_loop().time() + LATER
                refused = [key for key, rows in self._changed.items() if asks.size_of(rows) == size]
                for key in refused:
                    del self._changed[key]
                    self._put_off[key] = later
            except HadoopError:
                return

    def _tell_put_off(self) -> None:
        now = asyncio.get_running_loop().time()
        for key in [key for key, later in self._put_off.items() if later <= now]:
            del self._put_off[key]
            if key in self._rows:
                self._changed.setdefault(key, self._rows[key])

    def _begin_anew(self) -> None:
        """Tell a ResourceManager that was restarted all that is asked for and given back. What was granted and not started is lost."""
        self._changed = self._rows | self._changed
        for key, held in list(self._held.items()):
            if key in self._gathering:
                self._give_back(key)
                self._forget(key)
                self._tell(ContainerExited(*key))
            elif held.returned:
                held.heard = None
                self._give_back(key)
        self._stirred.set()

    def _take(self, answer: y.AllocateResponseProto) -> None:
        self._nodes.take(answer.nm_tokens)
        self._cluster, self._left = answer.num_cluster_nodes, answer.limit
        # The old one is good for some time yet, and for no new connection after that.
        if answer.HasField("am_rm_token"):
            self._begin(self._scheduler.close())
            self._scheduler = self._scheduler_for(token_of(answer.am_rm_token))
        starting: list[tuple[Key, Request]] = []
        for container in answer.allocated_containers:
            key = self._numbers.key(container.allocation_request_id)
            if key is None or key in self._held or key not in self._wanted:
                self._return(container)
                continue
            request = self._withdraw(key)
            self._inherit(container)
            if not self._gathering.add(key, request):
                starting.append((key, request))
        for status in answer.completed_container_statuses:
            self._ended(status)
        if answer.containers_from_previous_attempts:
            self._begin(self._adopt(answer.containers_from_previous_attempts))
        for asked in self._by_node(starting):
            self._begin(self._start([asked]))
        for gang in self._gathering.complete(self._wanted.values()):
            self._begin(self._start(self._by_node(gang)))
        preempted = [*answer.preempt.strictContract.container, *answer.preempt.contract.container]
        for warned in preempted:
            name = container_id_text(warned.id)
            if (key := self._by_container.get(name)) is not None and name not in self._warned:
                self._warned.add(name)
                self._tell(Warned(*key, self._preemption))

    # -- containers --

    def _inherit(self, container: y.ContainerProto) -> None:
        key = self._numbers.key(container.allocation_request_id)
        if key is None or key in self._held:
            self._return(container)
            return
        self._held[key] = _Held(container, node_text(container.nodeId))
        self._by_container[container_id_text(container.id)] = key

    async def _adopt(self, containers: Sequence[y.ContainerProto]) -> None:
        """Take over containers of earlier attempts that the ResourceManager lists after our start, or return them.

        A task whose container was not listed at our start was written off then, and has another container. So only the container of an
        ask that is still open is kept: the task's own agent runs in it.
        """
        unknown = [container for container in containers if container_id_text(container.id) not in self._by_container]
        running = await self._nodes.running(unknown)
        for container in unknown:
            key, name = self._numbers.key(container.allocation_request_id), container_id_text(container.id)
            if name in self._by_container:
                continue
            if key is None or key not in self._wanted or name not in running:
                log.warning("%s is an earlier master's, and no task needs it: it is given back", name)
                self._return(container)
                continue
            self._withdraw(key)
            self._inherit(container)
            self._held[key].running = True
            self._tell(Granted(*key, name, self._held[key].node))

    def _return(self, container: y.ContainerProto) -> None:
        self._returned[container_id_text(container.id)] = container.id
        self._stirred.set()

    def _by_node(self, asked: Sequence[tuple[Key, Request]]) -> list[list[tuple[Key, Request]]]:
        found: dict[str, list[tuple[Key, Request]]] = {}
        for key, request in asked:
            found.setdefault(self._held[key].node, []).append((key, request))
        return list(found.values())

    async def _start(self, on_nodes: Sequence[Sequence[tuple[Key, Request]]]) -> None:
        """Start our agent in containers, and tell of all of them at once."""
        for change in chain(*await asyncio.gather(*map(self._started, on_nodes))):
            self._tell(change)

    async def _started(self, asked: Sequence[tuple[Key, Request]]) -> list[Change]:
        """Start our agent in containers of one node, in one call; what became of them."""
        made: list[tuple[y.ContainerProto, y.ContainerLaunchContextProto]] = []
        told: list[Change] = []
        asked = [(key, request) for key, request in asked if key in self._held]
        for key, request in asked:
            spec = {
                **self._spec(request, ()),
                "container": self._held[key].id,
                "node": self._held[key].node,
                "gpus": request.gpus if asks.GPU in self._units else None,
            }
            made.append((self._held[key].proto, self._context(spec)))
        failed = await self._nodes.start(made) if made else {}
        for key, _ in asked:
            held = self._held.get(key)
            if held is None:
                continue
            if (why := failed.get(held.id)) is None:
                held.running = True
                told.append(Granted(*key, held.id, held.node))
            else:
                self._avoided.blame(held.node, self._cluster)
                self._give_back(key)
                self._forget(key)
                told.append(ContainerExited(*key, None, "localization-failed", {"detail": why, "node": held.node}))
        return told

    def _ended(self, status: y.ContainerStatusProto) -> None:
        key = self._by_container.get(container_id_text(status.container_id))
        if key is None:
            return
        held = self._forget(key)
        node = held.node
        if exits.lost(status.exit_status, status.diagnostics):
            self._tell(ContainerLost(*key, "node-lost", {"node": node}))
            return
        reason, figures = exits.reason(status.exit_status, status.diagnostics, node)
        if exits.blames(status.exit_status) and not held.returned:
            self._avoided.blame(node, self._cluster)
        self._tell(ContainerExited(*key, status.exit_status, reason, figures))

    def _write_off(self) -> None:
        """What was given back a while ago, and no end was told of, the ResourceManager has no record of: its node died meanwhile."""
        now = asyncio.get_running_loop().time()
        for key, held in list(self._held.items()):
            if held.heard is not None and now - held.heard >= UNTOLD:
                log.warning("YARN says nothing of the end of %s, which was given back", held.id)
                self._forget(key)
                self._tell(ContainerExited(*key))

    def _forget(self, key: Key) -> _Held:
        held = self._held.pop(key)
        del self._by_container[held.id]
        self._gathering.drop(key)
        return held

    def _give_back(self, key: Key) -> None:
        held = self._held[key]
        held.returned = True
        self._gathering.drop(key)
        self._return(held.proto)

    # -- words --

    async def _explain(self) -> None:
        try:
            told = await waiting.explain(
                self._manager, self._queue, list(self._wanted.values()), self._left, self._label, self._avoided.hosts
            )
        except HadoopError as error:
            log.warning("why it waits is not known: %s", error)
            return
        if self._wanted:
            self._tell(told)

    def _tell(self, change: Change) -> None:
        self._changes.put_nowait(change)

    def _begin(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._changes.put_nowait(error)
