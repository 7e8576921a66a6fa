"""YARN as a master uses it: the asks of one job, the containers it was given, the ends of both.

The master speaks to the ResourceManager in beats. Each beat sends the changes of the asks, and brings what was granted, what has ended, and
what will be taken back. An ask is one container under an *allocation request id* that says whose it is, (task, serial). So a grant needs no
matching by size (YARN rounds sizes up), and the next master knows whose containers it inherits. Asks are absolute: sent again they change
nothing. A ResourceManager that was restarted knows none of them (`not registered`), and gets all of them again.

A container that was granted has its place; it runs once our agent was started in it on its node. Containers that a dead master was granted
and never started are of no use: only that master had the token to start them.

Containers are known by their whole id: the number in it counts from 1 again in each attempt of the application, so a container of a dead
master and one of its successor have the same number. A ResourceManager that was restarted lists containers of earlier attempts late, in the
answers to beats, as their nodes come back to it.

A ResourceManager that was restarted knows only the containers of nodes that have come back to it, and says nothing when any other container
is released: the book writes such a container off.

An ask that is larger than every live node is refused, and everything else in the same beat with it. It may fit a node that comes back, so
it is denied, and sent again now and then. A node on which containers failed several times without a program's fault is not asked for any
more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import attrs

from trainmaster.core.containers import GOING, GONE, PLACED, RUNNING, Deletion, Habits, Request, Seen
from trainmaster.core.errors import EngineFailed
from trainmaster.core.machine.stimuli import (
    ContainerExited,
    ContainerLost,
    Key,
    KillRequested,
    Waiting,
    Warned,
)
from trainmaster.core.spec.job import Job
from trainmaster.engines.containers import Containers
from trainmaster.engines.contract import AgentSpec, Free, MasterSide
from trainmaster.engines.yarn.master import asks, exits, waiting
from trainmaster.engines.yarn.master.ending import Ending
from trainmaster.engines.yarn.master.nodes import Avoided, Nodes, excluded, racks
from trainmaster.engines.yarn.settings import settings
from trainmaster.hadoop.errors import AuthenticationFailed, HadoopError, RemoteError
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.credentials import Token
from trainmaster.hadoop.yarn import ResourceManager, Scheduler, container_id_text, node_text, token_of

FRESH, JUST = 0.03, 1.0  # FRESH: seconds between two beats while something was asked for within the last JUST seconds
PENDING, IDLE = 0.1, 1.0  # seconds between two beats while something is asked for, and otherwise
EXPLAIN = 2.0  # seconds that asks wait before we look for the reason, and between two looks
AGAIN = 1.0  # seconds until a beat that failed is tried again
UNTOLD = 10.0  # seconds after a release was heard, until the container is written off, since nobody reports its end
SETTLED = (
    2.0  # seconds without another grant, after which a gang begins with what it has: two default heartbeats of a node
)
_NOT_REGISTERED = "ApplicationMasterNotRegisteredException"
_OVER = ("ApplicationAttemptNotFoundException", "InvalidToken")
_FINAL = {"succeeded": y.APP_SUCCEEDED, "failed": y.APP_FAILED, "killed": y.APP_KILLED}

Context = Callable[[Mapping[str, Any]], y.ContainerLaunchContextProto]
log = logging.getLogger(__name__)


@attrs.define(slots=True, eq=False)
class _Container:
    """A container that the ResourceManager gave us. `returned`: it is given back."""

    proto: y.ContainerProto
    key: Key
    node: str
    returned: bool = False

    @property
    def id(self) -> str:
        return container_id_text(self.proto.id)

    def seen(self, phase: str, end: ContainerExited | ContainerLost | None = None) -> Seen:
        return Seen(self.key, phase, self.id, self.node, end=end)


class YarnMaster(MasterSide):
    """The `MasterSide` of YARN. `context(spec)` returns an agent's launch context for its spec; `scheduler(token)` returns a connection to
    the ResourceManager, which changes the master's token now and then; `protection` is as `conf.rpc_protection` gives it; `tracking(ended)`
    returns the address of the job's page, or of its history.
    """

    habits = Habits(SETTLED, None, UNTOLD)

    def __init__(
        self, job: Job, spec: AgentSpec, context: Context, scheduler: Callable[[Token], Scheduler], token: Token, manager: ResourceManager,
        protection: Sequence[str], tracking: Callable[[bool], str] = lambda ended: "", preemption: float = 15.0,
        ending: Ending | None = None,
    ) -> None:  # fmt: skip
        self._numbers, self._spec, self._context = asks.Numbers(job), spec, context
        self._scheduler_for, self._scheduler = scheduler, scheduler(token)
        self._manager, self._tracking, self._ending = manager, tracking, ending
        self._preemption = preemption  # seconds between a warning and the container's end
        self._queue = ""
        self._nodes = Nodes(protection)
        self._rows: dict[Key, asks.Rows] = {}  # open asks, as they were sent last
        self._changed: dict[Key, asks.Rows] = {}  # what the next beat sends
        self._known: dict[str, _Container] = {}
        self._returned: dict[str, y.ContainerIdProto] = {}  # given back, in a beat that was not answered yet
        self._avoided = Avoided(excluded(job))
        self._cluster = 0  # how many nodes it has
        self._warned: set[str] = set()
        self._response = 0
        self._stirred = asyncio.Event()
        self._asked_at = 0.0  # when something was asked for last
        self._largest = y.ResourceProto()
        self._units: Mapping[str, str] = {}
        self._label = settings(job.engines.get("yarn") or {}).label  # of containers whose role names none
        self._left = y.ResourceProto()  # what our user may still have in the queue, as the last beat reported it

    # -- the contract --

    async def open(self, epoch: int, containers: Containers) -> Sequence[Seen]:
        self._containers = containers
        answer = await self._register()
        self._queue, self._largest = answer.queue, answer.maximumCapability
        self._units = {kind.name: kind.units for kind in answer.resource_types}
        running = await self._nodes.running(answer.containers_from_previous_attempts)
        seen = []
        for proto in answer.containers_from_previous_attempts:
            if (container := self._note(proto)) is not None:
                seen.append(container.seen(RUNNING if container.id in running else PLACED))
        containers.work(self._beat())
        if self._ending is not None:
            self._ending.listen(self._report_kill)
        return seen

    def create(self, requests: Sequence[Request]) -> None:
        self._asked_at = asyncio.get_running_loop().time()
        if any(request.hosts for request in requests):
            self._containers.work(self._ask_near(requests))
        else:
            self._ask(requests, {})

    async def _ask_near(self, requests: Sequence[Request]) -> None:
        on_racks = await racks(self._manager)
        self._ask([request for request in requests if self._containers.book.wants(request.key)], on_racks)

    def _ask(self, requests: Sequence[Request], on_racks: Mapping[str, str]) -> None:
        for request in requests:
            rows = asks.ask_for(self._numbers.of(*request.key), request, on_racks, self._units)
            self._rows[request.key] = self._changed[request.key] = rows
        self._stirred.set()

    def start(self, requests: Sequence[Request]) -> None:
        containers = {container.key: container for container in self._known.values() if not container.returned}
        by_node: dict[str, list[tuple[_Container, Request]]] = {}
        for request in requests:
            container = containers[request.key]
            by_node.setdefault(container.node, []).append((container, request))
        for group in by_node.values():
            self._containers.work(self._start(group))

    def delete(self, deletions: Sequence[Deletion]) -> None:
        for deletion in deletions:
            if not deletion.id:
                self._withdraw(deletion.key)
                self._containers.see(Seen(deletion.key, GONE, ""))
            elif (container := self._known.get(deletion.id)) is not None and not container.returned:
                container.returned = True
                self._return(container.proto)
        self._stirred.set()

    def _withdraw(self, key: Key) -> None:
        if (rows := self._rows.pop(key, None)) is not None:
            self._changed[key] = asks.withdrawal(rows)

    async def free(self) -> Sequence[Free]:
        return await waiting.free(self._manager)

    async def close(self, state: str) -> None:
        request = y.FinishApplicationMasterRequestProto(
            final_application_status=_FINAL[state], tracking_url=self._tracking(True)
        )
        while not await self._unregister(request):  # noqa: ASYNC110  no news comes of it
            await asyncio.sleep(PENDING)
        await self._nodes.close()
        await self._scheduler.close()
        await self._manager.close()

    async def _unregister(self, request: y.FinishApplicationMasterRequestProto) -> bool:
        """Tell the ResourceManager of our end, as often as it takes while it is away. Return whether it has heard."""
        try:
            await self._send_changes()
            return (await self._scheduler.finish_application_master(request)).isUnregistered
        except AuthenticationFailed:  # our token is void: the ResourceManager has heard, and its answer was lost
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
            log.warning("our end cannot be reported to the ResourceManager yet: %s", error)
            await asyncio.sleep(AGAIN)
        return False

    # -- beats --

    async def _register(self) -> y.RegisterApplicationMasterResponseProto:
        request = y.RegisterApplicationMasterRequestProto(host="", rpc_port=-1, tracking_url=self._tracking(False))
        answer = await self._scheduler.register_application_master(request)
        self._response = 0
        self._nodes.take(answer.nm_tokens_from_previous_attempts)
        return answer

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        explained_at = loop.time()
        while True:
            try:
                self._take(await self._send_changes())
            except RemoteError as error:
                await self._process_refusal(error)
            except HadoopError as error:
                log.warning("the ResourceManager cannot be asked: %s", error)
                self._containers.report(
                    Waiting("resource manager", "", "", f"the ResourceManager cannot be reached: {error}")
                )
                await asyncio.sleep(AGAIN)
            if not self._rows:
                explained_at = loop.time()
            elif loop.time() - explained_at > EXPLAIN:
                explained_at = loop.time()
                self._containers.work(self._explain())
            try:
                async with asyncio.timeout(self._pause()):
                    await self._stirred.wait()
            except TimeoutError:
                continue

    def _pause(self) -> float:
        if self._rows and asyncio.get_running_loop().time() - self._asked_at < JUST:
            return FRESH
        return PENDING if self._rows or self._returned else IDLE

    async def _send_changes(self, size: asks.Size | None = None) -> y.AllocateResponseProto:
        """Send a beat, with all asks that changed, or with those of one size alone where `size` is given."""
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
        for name in returned:
            self._returned.pop(name, None)
        self._containers.see(*(self._known[name].seen(GOING) for name in returned if name in self._known))
        self._response = answer.response_id
        return answer

    async def _process_refusal(self, error: RemoteError) -> None:
        """Act on the ResourceManager's refusal: it does not know us since it was restarted, or our attempt is over, or it never grants one
        of the asks.
        """
        name = error.class_name.rpartition(".")[2]
        if name == _NOT_REGISTERED:
            log.warning("the ResourceManager was restarted; all asks and releases are sent again")
            try:
                answer = await self._register()
            except HadoopError as away:
                log.warning("this master cannot register with the ResourceManager yet: %s", away)
                await asyncio.sleep(AGAIN)
                return
            self._forget_all()
            self._containers.work(self._adopt(answer.containers_from_previous_attempts))
        elif name in _OVER:
            if self._ending is not None and (why := await self._ending.killed()):
                self._report_kill(why)
            else:
                self._containers.fail(EngineFailed(f"YARN has ended this master: {error}", anchor="master-ended"))
            raise asyncio.CancelledError
        elif asks.is_of_an_ask(error):
            if not self._drop_impossible(error):
                await self._put_off_too_large()
        else:
            log.warning("the ResourceManager refuses: %s", error)
            await asyncio.sleep(AGAIN)

    def _report_kill(self, why: str) -> None:
        """Report that YARN has killed the application and ends all its containers, in the moment that is left to write that."""
        self._containers.report(KillRequested("yarn", why))
        ends = [
            (container, ContainerExited(*container.key, None, "killed-by-engine")) for container in self._known.values()
        ]
        self._containers.see(*(container.seen(GONE, end) for container, end in ends))

    def _drop_impossible(self, error: RemoteError) -> bool:
        """Refuse the asks for a size, a resource or a label that is never granted. Return whether there are any."""
        dropped = [
            request.key for request in self._containers.book.asked()
            if "Label" in error.name or not asks.fits(asks.resource_of(request, self._units), self._largest)
        ]  # fmt: skip
        for key in dropped:
            self._rows.pop(key, None)
            self._changed.pop(key, None)
            self._containers.refuse(key, str(error))
        return bool(dropped)

    async def _put_off_too_large(self) -> None:
        """Send what has changed size by size, and put off what is refused. The withdrawal of a refused ask is not sent: if the ask is
        granted all the same, the container goes back.
        """
        for size in dict.fromkeys(map(asks.size_of, self._changed.values())):
            try:
                self._take(await self._send_changes(size))
            except RemoteError as error:
                if not asks.is_of_an_ask(error):
                    return  # the next beat gets the same refusal
                log.warning("the ResourceManager grants nothing of this size now: %s", error)
                refused = [key for key, rows in self._changed.items() if asks.size_of(rows) == size]
                for key in refused:
                    del self._changed[key]
                    self._containers.deny(key)
            except HadoopError:
                return

    def _forget_all(self) -> None:
        """Ask and release all again, of a ResourceManager that was restarted. Containers that were granted and not started are lost."""
        self._rows, self._changed = {}, {}
        for container in self._known.values():
            container.returned = False
        self._containers.forget()
        self._stirred.set()

    def _take(self, answer: y.AllocateResponseProto) -> None:
        self._nodes.take(answer.nm_tokens)
        self._cluster, self._left = answer.num_cluster_nodes, answer.limit
        # The old token is good for some time yet, and for no new connection after that.
        if answer.HasField("am_rm_token"):
            self._containers.work(self._scheduler.close())
            self._scheduler = self._scheduler_for(token_of(answer.am_rm_token))
        placed = [container for proto in answer.allocated_containers if (container := self._note(proto)) is not None]
        for container in placed:
            self._withdraw(container.key)
        self._containers.see(*(container.seen(PLACED) for container in placed))
        for status in answer.completed_container_statuses:
            self._process_end(status)
        if answer.containers_from_previous_attempts:
            self._containers.work(self._adopt(answer.containers_from_previous_attempts))
        preempted = [*answer.preempt.strictContract.container, *answer.preempt.contract.container]
        for preempted_container in preempted:
            name = container_id_text(preempted_container.id)
            if (known := self._known.get(name)) is not None and name not in self._warned:
                self._warned.add(name)
                self._containers.report(Warned(*known.key, self._preemption))

    # -- containers --

    def _note(self, proto: y.ContainerProto) -> _Container | None:
        """Return a container of ours; None where its number is of no task, and it goes back."""
        if (key := self._numbers.key(proto.allocation_request_id)) is None:
            self._return(proto)
            return None
        return self._known.setdefault(container_id_text(proto.id), _Container(proto, key, node_text(proto.nodeId)))

    async def _adopt(self, containers: Sequence[y.ContainerProto]) -> None:
        """Take containers of earlier attempts that the ResourceManager lists after our start; return those that do not run.

        A task whose container was not listed at our start was written off then, and has another container. So only the container of an
        ask that is still open is kept: the task's own agent runs in it.
        """
        unknown = [container for container in containers if container_id_text(container.id) not in self._known]
        running = await self._nodes.running(unknown)
        for proto in unknown:
            if container_id_text(proto.id) not in running:
                self._return(proto)
            elif (container := self._note(proto)) is not None:
                self._withdraw(container.key)
                self._containers.see(container.seen(RUNNING))

    def _return(self, container: y.ContainerProto) -> None:
        self._returned[container_id_text(container.id)] = container.id
        self._stirred.set()

    async def _start(self, granted: Sequence[tuple[_Container, Request]]) -> None:
        """Start our agent in containers of one node, in one call."""
        launches = []
        for container, request in granted:
            spec = {
                **self._spec(request, ()),
                "container": container.id,
                "node": container.node,
                "gpus": request.gpus if asks.GPU in self._units else None,
            }
            launches.append((container.proto, self._context(spec)))
        failed = await self._nodes.start(launches)
        for container, _ in granted:
            if (failure := failed.get(container.id)) is None:
                self._containers.see(container.seen(RUNNING))
                continue
            self._avoided.blame(container.node, self._cluster)
            del self._known[container.id]
            self._return(container.proto)
            figures = {"detail": failure, "node": container.node}
            self._containers.see(
                container.seen(GONE, ContainerExited(*container.key, None, "localization-failed", figures))
            )

    def _process_end(self, status: y.ContainerStatusProto) -> None:
        if (container := self._known.pop(container_id_text(status.container_id), None)) is None:
            return
        key, node = container.key, container.node
        if exits.lost(status.exit_status, status.diagnostics):
            self._containers.see(container.seen(GONE, ContainerLost(*key, "node-lost", {"node": node})))
            return
        reason, figures = exits.reason(status.exit_status, status.diagnostics, node)
        if exits.blames(status.exit_status) and not container.returned:
            self._avoided.blame(node, self._cluster)
        self._containers.see(container.seen(GONE, ContainerExited(*key, status.exit_status, reason, figures)))

    # -- words --

    async def _explain(self) -> None:
        requests = self._containers.book.asked()
        if not requests:
            return
        try:
            reason = await waiting.explain(
                self._manager, self._queue, requests, self._left, self._label, self._avoided.hosts
            )
        except HadoopError as error:
            log.warning("why it waits is not known: %s", error)
            return
        if self._containers.book.asked():
            self._containers.report(reason)
