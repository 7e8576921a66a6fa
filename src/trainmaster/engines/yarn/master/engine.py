"""YARN as a master uses it: the asks of one job, the containers it was given, the ends of both.

The master speaks to the ResourceManager in beats. Each beat sends the changes of the asks, and brings what was granted, what has ended, and
what will be taken back. An ask is one container under an *allocation request id* that says whose it is, (task, serial). So a grant needs no
matching by size (YARN rounds sizes up), and the next master knows whose containers it inherits. Asks are absolute: sent again they change
nothing. A ResourceManager that was restarted knows none of them (`not registered`), and gets all of them again.

A granted container is started on its node at once, with our agent, and reported when it runs. Containers that a dead master was granted and
never started are given back, and asked for anew.

Containers are known by their whole id: the number in it counts from 1 again in each attempt of the application, so a container of a dead
master and one of its successor have the same number. A ResourceManager that was restarted lists containers of earlier attempts late, in the
answers to beats, as their nodes come back to it.

A ResourceManager that was restarted knows only the containers of nodes that have come back to it, and says nothing when any other container
is released. So a container that was given back counts as ended some time later, even if nobody reports its end.

An ask that is larger than every live node is refused, and everything else in the same beat with it. It may fit a node that comes back, so
it is put off, and sent again now and then.

A node on which containers failed several times without a program's fault is not asked for any more. Containers of an elastic gang are kept
until it is clear with how many the gang begins (see `gangs`).
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
    Change,
    ContainerExited,
    ContainerLost,
    Granted,
    Key,
    KillRequested,
    Refused,
    Waiting,
    Warned,
)
from trainmaster.core.spec.job import Job
from trainmaster.engines.changes import Changes
from trainmaster.engines.contract import AgentSpec, Free, Holder, MasterSide, Request
from trainmaster.engines.gangs import Gathering
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
LATER = 10.0  # seconds until an ask that fits no node now is sent again
UNTOLD = 10.0  # seconds after a release was heard, until the container counts as ended though nobody reports its end
_NOT_REGISTERED = "ApplicationMasterNotRegisteredException"
_OVER = ("ApplicationAttemptNotFoundException", "InvalidToken")
_FINAL = {"succeeded": y.APP_SUCCEEDED, "failed": y.APP_FAILED, "killed": y.APP_KILLED}

Context = Callable[[Mapping[str, Any]], y.ContainerLaunchContextProto]
log = logging.getLogger(__name__)


@attrs.define(slots=True, eq=False)
class _Container:
    """A container that is ours."""

    proto: y.ContainerProto
    node: str
    running: bool = False
    returned: bool = False
    heard: float | None = None  # when the ResourceManager heard that the container is given back

    @property
    def id(self) -> str:
        return container_id_text(self.proto.id)


class YarnMaster(MasterSide):
    """The `MasterSide` of YARN. `context(spec)` returns an agent's launch context for its spec; `scheduler(token)` returns a connection to
    the ResourceManager, which changes the master's token now and then; `protection` is as `conf.rpc_protection` gives it; `tracking(ended)`
    returns the address of the job's page, or of its history.
    """

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
        self._requests: dict[Key, Request] = {}
        self._rows: dict[Key, asks.Rows] = {}  # as they were sent last
        self._gathering = Gathering(lambda: asyncio.get_running_loop().time())
        self._containers: dict[Key, _Container] = {}
        self._by_container: dict[str, Key] = {}
        self._changed: dict[Key, asks.Rows] = {}
        self._put_off: dict[Key, float] = {}  # asks that fit no node now -> when they are sent again
        self._returned: dict[str, y.ContainerIdProto] = {}  # given back, in a beat that was not answered yet
        self._avoided = Avoided(excluded(job))
        self._cluster = 0  # how many nodes it has
        self._warned: set[str] = set()
        self._response = 0
        self._changes = Changes()
        self._stirred = asyncio.Event()
        self._asked_at = 0.0  # when something was asked for last
        self._largest = y.ResourceProto()
        self._units: Mapping[str, str] = {}
        self._label = settings(job.engines.get("yarn") or {}).label  # of containers whose role names none
        self._left = y.ResourceProto()  # what our user may still have in the queue, as the last beat reported it

    # -- the contract --

    async def open(self, epoch: int) -> Sequence[Holder]:
        answer = await self._register()
        self._queue, self._largest = answer.queue, answer.maximumCapability
        self._units = {kind.name: kind.units for kind in answer.resource_types}
        running = await self._nodes.running(answer.containers_from_previous_attempts)
        for proto in sorted(
            answer.containers_from_previous_attempts, key=lambda each: container_id_text(each.id) not in running
        ):  # of two for the same ask, the running container is kept
            self._inherit(proto)
        holders = []
        for key, container in list(self._containers.items()):
            if container.id in running:
                container.running = True
                holders.append(Holder(*key, container.id, container.node))
            else:
                self._give_back(key)
        self._changes.start(self._beat())
        if self._ending is not None:
            self._ending.listen(self._report_kill)
        return holders

    async def ask(self, requests: Sequence[Request]) -> None:
        by_key = {(request.task, request.serial): request for request in requests}
        for key in self._requests.keys() - by_key.keys():
            self._withdraw(key)
        new = [key for key in by_key if key not in self._requests]
        if new:
            self._asked_at = asyncio.get_running_loop().time()
        self._gathering.know(by_key[key] for key in new)
        on_racks = await racks(self._manager) if any(by_key[key].hosts for key in new) else {}
        for key in new:
            container = self._containers.get(key)
            if container is None:
                self._requests[key] = by_key[key]
                self._rows[key] = self._changed[key] = asks.ask_for(
                    self._numbers.of(*key), by_key[key], on_racks, self._units
                )
            elif container.running:
                self._changes.report(Granted(*key, container.id, container.node))
        self._stirred.set()

    async def release(self, task: str, serial: int) -> None:
        key = (task, serial)
        if key in self._containers:
            self._give_back(key)
        else:
            if key in self._requests:
                self._withdraw(key)
            self._changes.report(ContainerExited(*key, None, "not-needed"))
        self._stirred.set()

    def _withdraw(self, key: Key) -> Request:
        request = self._requests.pop(key)
        self._changed[key] = asks.withdrawal(self._rows.pop(key))
        return request

    def changes(self) -> AsyncIterator[Change]:
        return self._changes.stream()

    async def free(self) -> Sequence[Free]:
        return await waiting.free(self._manager)

    async def close(self, state: str) -> None:
        for key in list(self._containers):
            self._give_back(key)
        await self._changes.cancel()
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
                self._send_put_off()
                self._take(await self._send_changes())
                self._write_off()
            except RemoteError as error:
                await self._process_refusal(error)
            except HadoopError as error:
                log.warning("the ResourceManager cannot be asked: %s", error)
                self._changes.report(
                    Waiting("resource manager", "", "", f"the ResourceManager cannot be reached: {error}")
                )
                await asyncio.sleep(AGAIN)
            if not self._requests:
                explained_at = loop.time()
            elif loop.time() - explained_at > EXPLAIN:
                explained_at = loop.time()
                self._changes.start(self._explain())
            try:
                async with asyncio.timeout(self._pause()):
                    await self._stirred.wait()
            except TimeoutError:
                continue

    def _pause(self) -> float:
        if self._requests and asyncio.get_running_loop().time() - self._asked_at < JUST:
            return FRESH
        return PENDING if self._requests or self._returned or self._gathering else IDLE

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
        for container in returned:
            self._returned.pop(container, None)
            if (key := self._by_container.get(container)) is not None and self._containers[key].heard is None:
                self._containers[key].heard = asyncio.get_running_loop().time()
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
            self._send_all_again()
            self._changes.start(self._adopt(answer.containers_from_previous_attempts))
        elif name in _OVER:
            if self._ending is not None and (why := await self._ending.killed()):
                self._report_kill(why)
            else:
                self._changes.fail(EngineFailed(f"YARN has ended this master: {error}", anchor="master-ended"))
            raise asyncio.CancelledError
        elif asks.is_of_an_ask(error):
            if not self._drop_impossible(error):
                await self._put_off_too_large()
        else:
            log.warning("the ResourceManager refuses: %s", error)
            await asyncio.sleep(AGAIN)

    def _report_kill(self, why: str) -> None:
        """Report that YARN has killed the application and ends all its containers, in the moment that is left to write that."""
        self._changes.report(KillRequested("yarn", why))
        for key in self._containers:
            self._changes.report(ContainerExited(*key, None, "killed-by-engine"))

    def _drop_impossible(self, error: RemoteError) -> bool:
        """Refuse the asks for a size, a resource or a label that is never granted. Return whether there are any."""
        dropped = [
            key for key, request in self._requests.items()
            if "Label" in error.name or not asks.fits(asks.resource_of(request, self._units), self._largest)
        ]  # fmt: skip
        for key in dropped:
            del self._requests[key], self._rows[key]
            self._changed.pop(key, None)
            self._changes.report(Refused(*key, str(error)))
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
                later = asyncio.get_running_loop().time() + LATER
                refused = [key for key, rows in self._changed.items() if asks.size_of(rows) == size]
                for key in refused:
                    del self._changed[key]
                    self._put_off[key] = later
            except HadoopError:
                return

    def _send_put_off(self) -> None:
        now = asyncio.get_running_loop().time()
        for key in [key for key, later in self._put_off.items() if later <= now]:
            del self._put_off[key]
            if key in self._rows:
                self._changed.setdefault(key, self._rows[key])

    def _send_all_again(self) -> None:
        """Send a ResourceManager that was restarted all asks and all releases. Containers that were granted and not started are lost."""
        self._changed = self._rows | self._changed
        for key, container in list(self._containers.items()):
            if key in self._gathering:
                self._give_back(key)
                self._forget(key)
                self._changes.report(ContainerExited(*key))
            elif container.returned:
                container.heard = None
                self._give_back(key)
        self._stirred.set()

    def _take(self, answer: y.AllocateResponseProto) -> None:
        self._nodes.take(answer.nm_tokens)
        self._cluster, self._left = answer.num_cluster_nodes, answer.limit
        # The old token is good for some time yet, and for no new connection after that.
        if answer.HasField("am_rm_token"):
            self._changes.start(self._scheduler.close())
            self._scheduler = self._scheduler_for(token_of(answer.am_rm_token))
        starting: list[tuple[Key, Request]] = []
        for container in answer.allocated_containers:
            key = self._numbers.key(container.allocation_request_id)
            if key is None or key in self._containers or key not in self._requests:
                self._return(container)
                continue
            request = self._withdraw(key)
            self._inherit(container)
            if not self._gathering.add(key, request):
                starting.append((key, request))
        for status in answer.completed_container_statuses:
            self._process_end(status)
        if answer.containers_from_previous_attempts:
            self._changes.start(self._adopt(answer.containers_from_previous_attempts))
        for group in self._by_node(starting):
            self._changes.start(self._start([group]))
        for gang in self._gathering.complete(self._requests.values()):
            self._changes.start(self._start(self._by_node(gang)))
        preempted = [*answer.preempt.strictContract.container, *answer.preempt.contract.container]
        for preempted_container in preempted:
            name = container_id_text(preempted_container.id)
            if (key := self._by_container.get(name)) is not None and name not in self._warned:
                self._warned.add(name)
                self._changes.report(Warned(*key, self._preemption))

    # -- containers --

    def _inherit(self, container: y.ContainerProto) -> None:
        key = self._numbers.key(container.allocation_request_id)
        if key is None or key in self._containers:
            self._return(container)
            return
        self._containers[key] = _Container(container, node_text(container.nodeId))
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
            if key is None or key not in self._requests or name not in running:
                log.warning("%s is an earlier master's, and no task needs it: it is given back", name)
                self._return(container)
                continue
            self._withdraw(key)
            self._inherit(container)
            self._containers[key].running = True
            self._changes.report(Granted(*key, name, self._containers[key].node))

    def _return(self, container: y.ContainerProto) -> None:
        self._returned[container_id_text(container.id)] = container.id
        self._stirred.set()

    def _by_node(self, grants: Sequence[tuple[Key, Request]]) -> list[list[tuple[Key, Request]]]:
        by_node: dict[str, list[tuple[Key, Request]]] = {}
        for key, request in grants:
            by_node.setdefault(self._containers[key].node, []).append((key, request))
        return list(by_node.values())

    async def _start(self, on_nodes: Sequence[Sequence[tuple[Key, Request]]]) -> None:
        """Start our agent in containers, and report all of them at once."""
        for change in chain(*await asyncio.gather(*map(self._start_on_node, on_nodes))):
            self._changes.report(change)

    async def _start_on_node(self, grants: Sequence[tuple[Key, Request]]) -> list[Change]:
        """Start our agent in containers of one node, in one call. Return what became of each."""
        launches: list[tuple[y.ContainerProto, y.ContainerLaunchContextProto]] = []
        changes: list[Change] = []
        grants = [(key, request) for key, request in grants if key in self._containers]
        for key, request in grants:
            spec = {
                **self._spec(request, ()),
                "container": self._containers[key].id,
                "node": self._containers[key].node,
                "gpus": request.gpus if asks.GPU in self._units else None,
            }
            launches.append((self._containers[key].proto, self._context(spec)))
        failed = await self._nodes.start(launches) if launches else {}
        for key, _ in grants:
            container = self._containers.get(key)
            if container is None:
                continue
            if (failure := failed.get(container.id)) is None:
                container.running = True
                changes.append(Granted(*key, container.id, container.node))
            else:
                self._avoided.blame(container.node, self._cluster)
                self._give_back(key)
                self._forget(key)
                changes.append(
                    ContainerExited(*key, None, "localization-failed", {"detail": failure, "node": container.node})
                )
        return changes

    def _process_end(self, status: y.ContainerStatusProto) -> None:
        key = self._by_container.get(container_id_text(status.container_id))
        if key is None:
            return
        container = self._forget(key)
        node = container.node
        if exits.lost(status.exit_status, status.diagnostics):
            self._changes.report(ContainerLost(*key, "node-lost", {"node": node}))
            return
        reason, figures = exits.reason(status.exit_status, status.diagnostics, node)
        if exits.blames(status.exit_status) and not container.returned:
            self._avoided.blame(node, self._cluster)
        self._changes.report(ContainerExited(*key, status.exit_status, reason, figures))

    def _write_off(self) -> None:
        """Report as ended each container that was given back a while ago and whose end nobody reported: its node died meanwhile, and the
        ResourceManager has no record of it.
        """
        now = asyncio.get_running_loop().time()
        for key, container in list(self._containers.items()):
            if container.heard is not None and now - container.heard >= UNTOLD:
                log.warning("YARN says nothing of the end of %s, which was given back", container.id)
                self._forget(key)
                self._changes.report(ContainerExited(*key))

    def _forget(self, key: Key) -> _Container:
        container = self._containers.pop(key)
        del self._by_container[container.id]
        self._gathering.drop(key)
        return container

    def _give_back(self, key: Key) -> None:
        container = self._containers[key]
        container.returned = True
        self._gathering.drop(key)
        self._return(container.proto)

    # -- words --

    async def _explain(self) -> None:
        try:
            reason = await waiting.explain(
                self._manager, self._queue, list(self._requests.values()), self._left, self._label, self._avoided.hosts
            )
        except HadoopError as error:
            log.warning("why it waits is not known: %s", error)
            return
        if self._requests:
            self._changes.report(reason)
