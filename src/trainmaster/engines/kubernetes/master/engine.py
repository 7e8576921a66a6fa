"""Kubernetes as a master uses it: the pods of one job, made, watched and taken away.

An ask is a pod. Its labels say whose it is, (task, serial), and its name follows from that: a pod that is made twice is the same pod, so
asks are idempotent across masters. A pod that exists already is adopted, even if the client made it (it may make a role's first pods
together with the master). All knowledge of pods comes from one watch (`kube.watching`), which survives an API server that is away.

A container runs, for the book, when its pod is placed on a node: it has what it asked for, and its agent calls by itself before the kubelet
reports that it runs. A trouble that keeps a placed pod from running (an image that cannot be fetched) is reported as waiting all the same.

An end is reported as soon as the agent's container has ended, and the pod is then deleted. A pod whose node does not answer stays
"Terminating" for as long as that. So one that was to go is reported as lost, and deleted by force, where its node is known to be away. Its
agent stops by itself (see the design), and the kubelet ends containers that have no pod as soon as it is back. Pods of a later master are
left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.containers import GOING, GONE, PENDING, RUNNING, Deletion, Habits, Request, Seen
from trainmaster.core.errors import EngineFailed, TrainmasterError
from trainmaster.core.machine.stimuli import ContainerExited, ContainerLost, Key, Warned
from trainmaster.core.spec.job import Job
from trainmaster.engines.containers import Containers
from trainmaster.engines.contract import Free, MasterSide
from trainmaster.engines.kubernetes.errors import failed
from trainmaster.engines.kubernetes.master import pod_status, waiting
from trainmaster.engines.kubernetes.master.nodes import Nodes
from trainmaster.engines.kubernetes.master.words import WaitingReasons
from trainmaster.engines.kubernetes.names import epoch_of, selector, stamped, task_of
from trainmaster.engines.kubernetes.pods.pods import request_of
from trainmaster.engines.kubernetes.settings import Settings
from trainmaster.kube import watching
from trainmaster.kube.client import Client
from trainmaster.kube.errors import Conflict, KubeError, NotFound
from trainmaster.kube.kinds import PODS

AT_ONCE, BESIDE = 32, 8  # pods made at the same time, and other requests of a master meanwhile
EXPLAIN = 2.0  # s between two looks why pods do not run
AGAIN = 1.0  # s until a deletion that failed is tried again
UNSEEN = 10.0  # s until a pod that was made and that the watch has not reported is looked for
TRIES = 3  # pods of a role, none of which ran, that found no Python
SETTLED = 2.0  # s without another grant, after which a gang begins with what it has
LATE, CLOSING = (
    20.0,
    15.0,
)  # s beyond its grace until a pod that does not go is given up; and for the last pods of a job

log = logging.getLogger(__name__)


@attrs.define(slots=True, eq=False)
class PodRecord:
    """A pod that is there, as last seen. `returned`: we have deleted it, or it is over; `watched`: the watch has reported it."""

    pod: dict[str, Any]
    since: float
    request: Request | None = None
    returned: bool = False
    over: bool = False
    warned: bool = False
    watched: bool = False
    placed: float | None = None
    trouble: tuple[str, float] | None = None  # the resource that it waits for, and since when

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"].get("uid") or "")


class KubernetesMaster(MasterSide):
    """`MasterSide` on Kubernetes. `make(request)`: the whole pod that an ask becomes. The client is ours to close."""

    def __init__(
        self, job_id: str, job: Job, client: Client, make: Callable[[Request], Mapping[str, Any]], settings: Settings
    ) -> None:
        self.habits = Habits(SETTLED, settings.gang_timeout, LATE, CLOSING)
        self._job_id, self._client, self._make, self._settings = job_id, client, make, settings
        self._roles = job.roles
        self._nodes = Nodes(client, self._node_changed, settings.pods.accelerator)
        self._pods: dict[Key, PodRecord] = {}
        self._denials: dict[str, waiting.Trouble] = {}  # role -> why its pods are not made at the moment
        self._ran: set[str] = set()  # roles of which a container ran
        self._without: Counter[str] = Counter()  # by role: containers that found no Python
        self._explained = WaitingReasons(client)
        self._away = ""
        self._epoch = 0  # of this master
        self._is_open = False
        self._synced = asyncio.Event()
        self._room = asyncio.Semaphore(AT_ONCE)

    # -- the contract --

    async def open(self, epoch: int, containers: Containers) -> Sequence[Seen]:
        self._epoch, self._containers = epoch, containers
        following = containers.work(self._follow())
        synced = asyncio.create_task(self._synced.wait())
        await asyncio.wait({following, synced}, return_when=asyncio.FIRST_COMPLETED)
        if not synced.done():
            synced.cancel()
            following.result()
        containers.work(self._nodes.watch())
        containers.work(self._beat())
        self._is_open = True
        return [sight for key, record in list(self._pods.items()) if (sight := self._sight(key, record)) is not None]

    def create(self, requests: Sequence[Request]) -> None:
        for request in sorted(requests, key=lambda request: (-request.priority, request.index)):
            self._containers.work(self._create(request))

    def delete(self, deletions: Sequence[Deletion]) -> None:
        for deletion in deletions:
            record = self._pods.get(deletion.key)
            if record is not None and record.uid == deletion.id and (deletion.by_force or not record.returned):
                record.returned = True
                self._remove(deletion.key, record, 0 if deletion.by_force else None)

    async def free(self) -> Sequence[Free]:
        return await self._nodes.free()

    async def close(self, state: str) -> None:
        await self._client.close()

    # -- pods that are made --

    async def _create(self, request: Request) -> None:
        key, book = request.key, self._containers.book
        try:
            async with self._room:
                if not book.wants(key):
                    self._containers.see(Seen(key, GONE, ""))
                elif book.is_denied(request.role, self._now()):
                    self._containers.deny(key)
                else:
                    pod = await self._make_or_adopt(key, stamped(self._make(request), self._epoch))
                    self._denials.pop(request.role, None)
                    self._update(key, pod, watched=False)
        except KubeError as error:
            self._not_made(request, waiting.denial(error))
        except TrainmasterError as error:
            self._containers.refuse(key, str(error))

    async def _make_or_adopt(self, key: Key, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Make the pod, or adopt the one that is there; return it as the server made it."""
        try:
            created = await self._client.create(PODS, pod, metadata=True)  # the watch reports the rest
            return pod_status.essence({**pod, "metadata": created["metadata"]})
        except Conflict as error:
            if not error.exists:
                raise
            try:
                existing = pod_status.essence(await self._client.get(PODS, pod["metadata"]["name"]))
            except NotFound:  # the pod was deleted in between: it is made a moment later
                raise error from None
            if self._key(existing) != key:
                message = f"a pod {pod['metadata']['name']} is there, and is not this job's"
                raise EngineFailed(message, place="engines.kubernetes.namespace", anchor="kubernetes") from error
            return existing

    def _not_made(self, request: Request, trouble: waiting.Trouble) -> None:
        if trouble.hopeless is not None and request.role not in self._ran:
            self._containers.refuse(request.key, trouble.detail)
            return
        log.warning("the pod of %s is not made: %s", request.task, trouble.detail)
        self._denials[request.role] = trouble
        self._containers.deny(request.key)

    # -- pods that are seen --

    async def _follow(self) -> None:
        try:
            async for seen in watching.follow(self._client, PODS, selector(self._job_id)):
                self._hear(seen)
        except KubeError as error:
            raise failed(error, self._client.config) from error

    def _hear(self, seen: watching.Seen) -> None:
        if seen.kind in ("synced", "away"):
            self._away = seen.why if seen.kind == "away" else ""
            self._containers.blind(bool(self._away))
            if self._away:
                log.warning("the API server is away: %s", seen.why)
            else:
                self._synced.set()
        elif (key := self._key(seen.object)) is None:
            pass  # a pod of no task of ours
        elif seen.kind == "deleted":
            record = self._pods.get(key)
            if record is not None and record.uid == seen.object["metadata"]["uid"]:
                if seen.object.get("status"):
                    record.pod = pod_status.essence(seen.object)
                self._vanish(key, record)
        else:
            self._update(key, pod_status.essence(seen.object))

    def _key(self, pod: Mapping[str, Any]) -> Key | None:
        """Return the task and serial of a pod; None for a pod of no task of this job."""
        key = task_of(pod)
        return key if key is not None and key[0].rpartition(":")[0] in self._roles else None

    def _update(self, key: Key, pod: dict[str, Any], *, watched: bool = True) -> None:
        record = self._pods.get(key)
        if record is None or record.uid != pod["metadata"].get("uid"):
            role, _, index = key[0].rpartition(":")
            request = request_of(role, self._roles[role], int(index), key[1])
            record = self._pods[key] = PodRecord(pod, self._now(), request)
        elif not watched:
            return  # the watch knows more
        record.pod, record.watched = pod, record.watched or watched
        self._look_at(key, record)

    def _look_at(self, key: Key, record: PodRecord) -> None:
        """Tell what has become of a pod."""
        if not self._is_open or (sight := self._sight(key, record)) is None:
            return
        self._containers.see(sight)
        if sight.end is not None:
            self._remove(key, record, 0 if isinstance(sight.end, ContainerLost) else None)  # what is left of it
        elif (
            not (record.warned or record.returned)
            and self._containers.book.is_reported(key)
            and (warning := pod_status.warning(record.pod)) is not None
        ):
            record.warned = True
            seconds, reason, figures = warning
            self._containers.report(Warned(*key, seconds, reason, figures))

    def _sight(self, key: Key, record: PodRecord) -> Seen | None:
        """Return what is seen of a pod; None where that is known, or is of a later master's."""
        pod, node = record.pod, pod_status.node_of(record.pod)
        if record.over or epoch_of(pod) > self._epoch:
            return None
        if pod_status.started(pod):
            self._ran.add(key[0].rpartition(":")[0])
        if node and record.placed is None:
            record.placed = self._now()
        end = pod_status.ended(pod, by_us=record.returned)
        is_going = pod_status.deleted(pod)
        if end is None and (
            self._nodes.gone(node) or (is_going and (pod_status.out_of_reach(pod) or self._nodes.away(node)))
        ):
            end = pod_status.given_up(pod)
        if end is not None:
            return self._gone(key, record, end)
        phase = GOING if is_going else RUNNING if node else PENDING
        about, spec = pod["metadata"], pod["spec"]
        grace = about.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds", 30))
        return Seen(key, phase, record.uid, node, (), record.name, float(grace or 0))

    def _gone(self, key: Key, record: PodRecord, end: pod_status.End) -> Seen:
        lost = ContainerLost(*key, end.reason or "node-lost", end.figures)
        change = lost if end.lost else ContainerExited(*key, end.status, end.reason, end.figures)
        role = key[0].rpartition(":")[0]
        if end.reason == "no-python" and role not in self._ran:
            self._without[role] += 1
            if self._without[role] >= TRIES:
                self._containers.refuse(key, f"no Python >= 3.11 was found on {end.figures['node']}")
        record.over = record.returned = True
        return Seen(key, GONE, record.uid, pod_status.node_of(record.pod), (), record.name, end=change)

    def _vanish(self, key: Key, record: PodRecord) -> None:
        """Take that a pod is there no more."""
        if self._pods.get(key) is not record:
            return
        del self._pods[key]
        if not record.over and self._is_open:
            self._containers.see(self._gone(key, record, pod_status.vanished(record.pod, by_us=record.returned)))

    def _remove(self, key: Key, record: PodRecord, grace: int | None) -> None:
        self._containers.work(self._delete(key, record, grace))

    async def _delete(self, key: Key, record: PodRecord, grace: int | None) -> None:
        """Have a pod deleted, as often as it takes."""
        while True:
            try:
                if not await self._client.delete(PODS, record.name, grace=grace, uid=record.uid) and not record.watched:
                    self._vanish(key, record)
            except Conflict:  # another one by that name
                self._vanish(key, record)
            except KubeError as error:
                log.warning("pod %s is not deleted yet: %s", record.name, error)
                await asyncio.sleep(AGAIN)
                continue
            return

    def _node_changed(self, node: str) -> None:
        for key, record in list(self._pods.items()):
            if pod_status.node_of(record.pod) == node:
                self._look_at(key, record)

    # -- time --

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(EXPLAIN)
            await self._check(self._now())
            await self._explain()

    async def _check(self, now: float) -> None:
        """Look for pods that the watch has not reported: they may have gone before it began."""
        unseen = {
            key: record for key, record in self._pods.items() if not record.watched and now - record.since > UNSEEN
        }
        if not unseen or self._away:
            return
        with contextlib.suppress(KubeError):
            pods, _ = await self._client.list(PODS, labels=selector(self._job_id), metadata=True)
            uids = {pod["metadata"]["uid"] for pod in pods}
            for key, record in unseen.items():
                record.since = now
                if record.uid not in uids:
                    self._vanish(key, record)

    async def _explain(self) -> None:
        """Say what the pods wait for, and give up those that will never run."""
        unplaced = any(not (record.over or pod_status.node_of(record.pod)) for record in self._pods.values())
        nodes = await self._nodes.free() if unplaced else ()
        delayed = self._containers.book.delayed()
        denied = [(request, self._denials[request.role]) for request in delayed if request.role in self._denials]
        explanation, hopeless = await self._explained.look(
            self._pods, denied, nodes, self._now(), self._away, self._ran
        )
        for key, why in hopeless:
            self._containers.refuse(key, why)
        if explanation is not None:
            self._containers.report(explanation)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
