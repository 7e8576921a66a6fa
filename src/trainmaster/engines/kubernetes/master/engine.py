"""Kubernetes as a master uses it: the pods of one job, asked for, watched and taken away.

An ask is a pod. Its labels say whose it is, (task, serial), and its name follows from that: a pod that is made twice is the same pod, so
asks are idempotent across masters. A pod that exists already is adopted, even if the client made it (it may make a role's first pods
together with the master). All knowledge of pods comes from one watch (`kube.watching`), which survives an API server that is away; the loop
`_beat` only looks at what is due.

A container is granted when its pod is placed on a node: it has what it asked for, and its agent calls by itself before the kubelet
reports that it runs. A trouble that keeps a placed pod from running (an image that cannot be fetched) is reported as waiting all the same.

An end is reported as soon as the container has ended, and the pod is then deleted. A pod whose node does not answer stays "Terminating" for
as long as that. So a pod that was to go is reported as lost and deleted by force if it outlasts its grace by some time, or if its node is
known to be away. Its agent stops by itself (see the design), and the kubelet ends containers that have no pod as soon as it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.errors import EngineFailed, TrainmasterError
from trainmaster.core.machine.stimuli import (
    Change,
    ContainerExited,
    ContainerLost,
    GangOverdue,
    Granted,
    Key,
    Refused,
    Warned,
)
from trainmaster.core.spec.job import Job
from trainmaster.engines.changes import Changes
from trainmaster.engines.contract import Free, Holder, MasterSide, Request
from trainmaster.engines.gangs import Gathering
from trainmaster.engines.kubernetes.errors import failed
from trainmaster.engines.kubernetes.master import pod_status, waiting
from trainmaster.engines.kubernetes.master.gangs import Patience
from trainmaster.engines.kubernetes.master.nodes import Nodes
from trainmaster.engines.kubernetes.master.words import WaitingReasons
from trainmaster.engines.kubernetes.names import epoch_of, selector, stamped, task_of
from trainmaster.engines.kubernetes.pods.pods import request_of
from trainmaster.engines.kubernetes.settings import Settings
from trainmaster.kube.client import Client
from trainmaster.kube.errors import Conflict, KubeError, NotFound
from trainmaster.kube.kinds import PODS
from trainmaster.kube.watching import Seen, follow

AT_ONCE, BESIDE = 32, 8  # pods made at the same time, and other requests of a master meanwhile
BEAT, BUSY = 1.0, 0.1  # s between two looks at what is due, and while a gang gathers
EXPLAIN = 2.0  # s between two looks why pods do not run
AGAIN = 1.0  # s until a call that failed is made again
LATEST = 15.0  # s, the longest that a pod that was refused for a while is put off
LATE = 20.0  # s beyond its grace until a pod that does not go is given up
UNSEEN = 10.0  # s until a pod that was made and that the watch has not reported is looked for
TRIES = 3  # pods of a role, none of which ran, that found no Python
CLOSING = 15.0  # s for the last pods to be taken back

log = logging.getLogger(__name__)


@attrs.define(slots=True, eq=False)
class PodRecord:
    """A pod that is there, as last seen. `returned`: we have deleted it; `going`: when its deletion was first known; `watched`: the watch
    has reported it.
    """

    pod: dict[str, Any]
    since: float
    request: Request | None = None
    granted: bool = False
    returned: bool = False
    warned: bool = False
    watched: bool = False
    going: float | None = None
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
        self._job_id, self._client, self._make, self._settings = job_id, client, make, settings
        self._roles = job.roles
        self._nodes = Nodes(client, self._node_changed, settings.pods.accelerator)
        self._wanted: dict[Key, Request] = {}  # asked for, and not granted yet
        self._pods: dict[Key, PodRecord] = {}
        self._over: dict[Key, ContainerExited | ContainerLost] = {}  # the ends that were reported
        self._gone: set[str] = set()  # the uids of pods that have ended
        self._making: set[Key] = set()
        self._unwanted: set[Key] = set()  # given back while they were being made
        self._put_off: dict[Key, float] = {}  # refused for a while -> when they are made again
        self._denied: dict[str, tuple[waiting.Trouble, float]] = {}  # role -> why, and until when none of it is made
        self._refusals: Counter[str] = Counter()  # in a row, by role
        self._vanished: Counter[str] = Counter()  # pods of a task that were deleted before they were placed, in a row
        self._ran: set[str] = set()  # roles of which a container ran
        self._without: Counter[str] = Counter()  # by role: containers that found no Python
        self._gathering = Gathering(self._now)
        self._patience = Patience(settings.gang_timeout)
        self._explained = WaitingReasons(client)
        self._away = ""
        self._epoch = 0  # of this master
        self._has_asked = False  # whether this master has asked for its pods
        self._synced = asyncio.Event()
        self._stirred = asyncio.Event()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._changes = Changes()
        self._removing: set[asyncio.Task[None]] = set()

    # -- the contract --

    async def open(self, epoch: int) -> Sequence[Holder]:
        """Return the pods that are placed, also those that have ended meanwhile: their ends are reported at once."""
        self._epoch = epoch
        following = self._changes.start(self._follow())
        synced = asyncio.create_task(self._synced.wait())
        await asyncio.wait({following, synced}, return_when=asyncio.FIRST_COMPLETED)
        if not synced.done():
            synced.cancel()
            following.result()
        self._changes.start(self._nodes.watch())
        self._changes.start(self._beat())
        # The pods that the first master finds were made together with it, before anybody asked: they are granted when it asks.
        placed = [(key, record) for key, record in self._pods.items() if pod_status.node_of(record.pod) and epoch > 1]
        for key, record in placed:
            role, _, index = key[0].rpartition(":")
            record.granted, record.request = True, request_of(role, self._roles[role], int(index), key[1])
            asyncio.get_running_loop().call_soon(self._look_at, key, record)
        return [Holder(*key, record.name, pod_status.node_of(record.pod)) for key, record in placed]

    async def ask(self, requests: Sequence[Request]) -> None:
        asks = {(request.task, request.serial): request for request in requests}
        for key in self._wanted.keys() - asks.keys():
            del self._wanted[key]
            self._take_back(key)
        new = [key for key in asks if key not in self._wanted]
        self._gathering.know(asks[key] for key in new)
        for key in sorted(new, key=lambda key: (-asks[key].priority, asks[key].index)):
            self._want(key, asks[key])
        for key in new:  # once all are known: this pod may be all that its gang waits for
            if (record := self._pods.get(key)) is not None:
                self._look_at(key, record)
        if not self._has_asked:
            self._has_asked = True
            for key, record in list(self._pods.items()):
                if not record.granted and key not in self._wanted and epoch_of(record.pod) <= self._epoch:
                    self._give_back(key, record)
        self._stirred.set()

    async def release(self, task: str, serial: int) -> None:
        key = (task, serial)
        self._wanted.pop(key, None)
        if not self._take_back(key):
            self._changes.report(self._over.get(key) or ContainerExited(*key, None, "not-needed"))
        self._stirred.set()

    def changes(self) -> AsyncIterator[Change]:
        return self._changes.stream()

    async def free(self) -> Sequence[Free]:
        return await self._nodes.free()

    async def close(self, state: str) -> None:
        self._wanted.clear()
        for key, record in list(self._pods.items()):
            self._give_back(key, record)
        if self._removing:
            await asyncio.wait(self._removing, timeout=CLOSING)
        await self._changes.cancel()
        await self._client.close()

    # -- asks --

    def _want(self, key: Key, request: Request) -> None:
        record = self._pods.get(key)
        if key in self._gathering:
            return  # it is granted with the rest of its gang
        if record is not None and record.granted and not record.returned:
            record.request = request
            self._changes.report(Granted(*key, record.name, pod_status.node_of(record.pod)))
        elif key in self._over:
            self._changes.report(self._over[key])
        else:
            self._wanted[key] = request
            if record is not None:
                record.request = request
            elif key not in self._making:
                self._postpone(key) if self._vanished[key[0]] else self._changes.start(self._create(key))

    def _postpone(self, key: Key) -> None:
        """Make the pod after a while: whoever deletes the pods of this task does it again."""
        self._put_off[key] = self._now() + min(LATEST, 2.0 ** (self._vanished[key[0]] - 2))

    async def _create(self, key: Key) -> None:
        self._making.add(key)
        try:
            async with self._room:
                if (request := self._wanted.get(key)) is None or self._postpone_if_denied(key):
                    return
                pod = await self._make_or_adopt(key, stamped(self._make(request), self._epoch))
                self._denied.pop(request.role, None)
                self._refusals[request.role] = 0
                if key not in self._pods:
                    self._update(key, pod, watched=False)
        except KubeError as error:
            self._not_made(key, waiting.denial(error))
        except TrainmasterError as error:
            self._refuse(key, str(error))
        finally:
            self._making.discard(key)
            if key in self._unwanted:
                self._unwanted.discard(key)
                if not self._take_back(key):
                    self._changes.report(ContainerExited(*key, None, "not-needed"))

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

    def _postpone_if_denied(self, key: Key) -> bool:
        """Put the pod off with the others of its role where these are refused at the moment; tell whether that is so."""
        until = self._denied[role][1] if (role := self._wanted[key].role) in self._denied else 0.0
        if until <= self._now():
            return False
        self._put_off[key] = until
        return True

    def _not_made(self, key: Key, trouble: waiting.Trouble) -> None:
        if (request := self._wanted.get(key)) is None:
            return
        if trouble.hopeless is not None and request.role not in self._ran:
            self._refuse(key, trouble.detail)
            return
        log.warning("the pod of %s is not made: %s", key[0], trouble.detail)
        delay = min(LATEST, AGAIN * 2.0 ** min(self._refusals[request.role], 8))
        if request.role not in self._denied or self._denied[request.role][1] <= self._now():
            self._refusals[request.role] += 1
            self._denied[request.role] = trouble, self._now() + delay
        self._put_off[key] = self._denied[request.role][1]
        self._stirred.set()

    def _refuse(self, key: Key, why: str) -> None:
        if key in self._wanted or key in self._pods:
            self._wanted.pop(key, None)
            self._changes.report(Refused(*key, why))

    def _take_back(self, key: Key) -> bool:
        """Delete the pod that an ask has, or will have; tell whether there is one, whose end will be reported."""
        self._put_off.pop(key, None)
        if (record := self._pods.get(key)) is not None:
            self._give_back(key, record)
        elif key in self._making:
            self._unwanted.add(key)
        else:
            return False
        return True

    # -- pods --

    async def _follow(self) -> None:
        try:
            async for seen in follow(self._client, PODS, selector(self._job_id)):
                self._hear(seen)
        except KubeError as error:
            raise failed(error, self._client.config) from error

    def _hear(self, seen: Seen) -> None:
        if seen.kind == "synced":
            self._away = ""
            self._synced.set()
        elif seen.kind == "away":
            self._away = seen.why
            log.warning("the API server is away: %s", seen.why)
            self._stirred.set()
        elif (key := self._key(seen.object)) is None:
            pass  # a pod of no task of ours
        elif seen.kind == "deleted":
            record = self._pods.get(key)
            if record is not None and record.uid == seen.object["metadata"]["uid"]:
                if seen.object.get("status"):
                    record.pod = pod_status.essence(seen.object)
                self._end(key, record, pod_status.vanished(record.pod, by_us=record.returned), gone=True)
        else:
            self._update(key, pod_status.essence(seen.object))

    def _key(self, pod: Mapping[str, Any]) -> Key | None:
        """Return the task and serial of a pod; None for a pod of no task of this job."""
        key = task_of(pod)
        return key if key is not None and key[0].rpartition(":")[0] in self._roles else None

    def _update(self, key: Key, pod: dict[str, Any], *, watched: bool = True) -> None:
        if pod["metadata"].get("uid") in self._gone:
            return
        record = self._pods.get(key)
        if record is None or record.uid != pod["metadata"].get("uid"):
            record = self._pods[key] = PodRecord(pod, self._now(), self._wanted.get(key))
            self._put_off.pop(key, None)
        record.pod, record.watched = pod, record.watched or watched
        if not self._synced.is_set():
            return  # `open` reports these pods
        is_wanted = record.granted or record.returned or key in self._wanted or key in self._unwanted
        if self._has_asked and not is_wanted and epoch_of(pod) <= self._epoch:
            self._give_back(key, record)  # nobody wants it any more
        self._look_at(key, record)

    def _look_at(self, key: Key, record: PodRecord) -> None:
        """Report what has become of a pod, if that is new."""
        if self._pods.get(key) is not record:
            return
        pod = record.pod
        if pod_status.started(pod):
            self._ran.add(key[0].rpartition(":")[0])
        if key in self._wanted and pod_status.node_of(pod) and not record.granted and not record.returned:
            self._grant(key, record)
        if (end := pod_status.ended(pod, by_us=record.returned)) is not None:
            self._end(key, record, end)
            return
        if pod_status.deleted(pod) and record.going is None:
            record.going = self._now()
        node = pod_status.node_of(pod)
        if self._nodes.gone(node) or (
            (record.going is not None) and (pod_status.out_of_reach(pod) or self._nodes.away(node))
        ):
            self._end(key, record, pod_status.given_up(pod))
        elif (
            record.granted
            and not (record.warned or record.returned)
            and (warning := pod_status.warning(pod)) is not None
        ):
            record.warned = True
            seconds, reason, figures = warning
            self._changes.report(Warned(*key, seconds, reason, figures))

    def _grant(self, key: Key, record: PodRecord) -> None:
        request = self._wanted.pop(key)
        record.granted, record.request, record.placed = True, request, self._now()
        self._vanished.pop(key[0], None)
        self._patience.granted(request, self._now())
        if not self._gathering.add(key, request):
            self._changes.report(Granted(*key, record.name, pod_status.node_of(record.pod)))
        self._grant_gangs()

    def _grant_gangs(self) -> None:
        for gang in self._gathering.complete(self._wanted.values()):
            for key, _ in gang:
                if (record := self._pods.get(key)) is not None:
                    self._changes.report(Granted(*key, record.name, pod_status.node_of(record.pod)))

    def _end(self, key: Key, record: PodRecord, end: pod_status.End, *, gone: bool = False) -> None:
        """Report the end of a pod, and delete what is left of it."""
        if key in self._wanted and not record.returned and not pod_status.node_of(record.pod):
            self._vanished[key[0]] += 1
        self._pods.pop(key)
        self._gone.add(record.uid)
        self._wanted.pop(key, None)
        self._gathering.drop(key)
        lost = ContainerLost(*key, end.reason or "node-lost", end.figures)
        change = self._over[key] = lost if end.lost else ContainerExited(*key, end.status, end.reason, end.figures)
        role = key[0].rpartition(":")[0]
        if end.reason == "no-python" and (role not in self._ran):
            self._without[role] += 1
            if self._without[role] >= TRIES:
                self._changes.report(Refused(*key, f"no Python >= 3.11 was found on {end.figures['node']}"))
        self._changes.report(change)
        if not gone:
            self._remove(key, record, 0 if end.lost else None)
        self._stirred.set()

    def _give_back(self, key: Key, record: PodRecord) -> None:
        if record.returned:
            return
        record.returned, record.going = True, record.going or self._now()
        self._gathering.drop(key)
        self._remove(key, record, None)
        self._look_at(key, record)

    def _remove(self, key: Key, record: PodRecord, grace: int | None) -> None:
        task = self._changes.start(self._delete(key, record, grace))
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def _delete(self, key: Key, record: PodRecord, grace: int | None) -> None:
        """Have a pod deleted, as often as it takes."""
        while True:
            try:
                if not await self._client.delete(PODS, record.name, grace=grace, uid=record.uid) and not record.watched:
                    self._vanish(key, record)
                record.going = self._now()  # its grace begins
            except Conflict:  # another one by that name
                self._vanish(key, record)
            except KubeError as error:
                log.warning("pod %s is not deleted yet: %s", record.name, error)
                await asyncio.sleep(AGAIN)
                continue
            return

    def _vanish(self, key: Key, record: PodRecord) -> None:
        if self._pods.get(key) is record:
            self._end(key, record, pod_status.vanished(record.pod, by_us=record.returned), gone=True)

    def _node_changed(self, node: str) -> None:
        for key, record in list(self._pods.items()):
            if pod_status.node_of(record.pod) == node:
                self._look_at(key, record)

    # -- time --

    async def _beat(self) -> None:
        explained_at = self._now()
        while True:
            self._stirred.clear()
            now = self._now()
            for key in [key for key, due in self._put_off.items() if due <= now]:
                del self._put_off[key]
                if key in self._wanted and key not in self._pods:
                    self._changes.start(self._create(key))
            self._grant_gangs()
            for gang in self._patience.overdue(self._wanted.values(), now):
                self._changes.report(GangOverdue(gang, self._settings.gang_timeout or 0.0))
            for key, record in list(self._pods.items()):
                self._overdue(key, record, now)
            await self._check(now)
            if now - explained_at >= EXPLAIN:
                explained_at = now
                await self._explain()
            soonest = min(self._put_off.values(), default=now + BEAT) - now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY if self._gathering else max(BUSY, min(BEAT, soonest))):
                    await self._stirred.wait()

    def _overdue(self, key: Key, record: PodRecord, now: float) -> None:
        if record.going is not None:
            about, spec = record.pod["metadata"], record.pod["spec"]
            grace = about.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds", 30))
            if now - record.going > grace + LATE and not self._away:
                log.warning("pod %s does not end on %s", record.name, pod_status.node_of(record.pod) or "no node")
                self._end(key, record, pod_status.given_up(record.pod))

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
        nodes = (
            await self._nodes.free()
            if any(not pod_status.node_of(record.pod) for record in self._pods.values())
            else ()
        )
        denied = [(self._wanted[key], self._denied[role][0]) for key in self._put_off
                  if key in self._wanted and (role := self._wanted[key].role) in self._denied]  # fmt: skip
        explanation, hopeless = await self._explained.look(
            self._pods, denied, nodes, self._now(), self._away, self._ran
        )
        for key, why in hopeless:
            self._refuse(key, why)
        if explanation is not None:
            self._changes.report(explanation)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
