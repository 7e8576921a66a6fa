"""Kubernetes as a master uses it: the pods of one job, asked for, watched and taken away.

An ask is a pod, whose labels say whose it is, (task, serial), and whose name follows from that: made twice it is the same one, so asks are
idempotent across masters, and a pod that is there already, whoever made it (the client may make a role's first together with the master),
is adopted. All that is known of pods comes by one watch (`kube.watching`), which lives through an API server that is away; the loop beside
it (`_beat`) only looks at what time brings about.

A container is granted when its pod is placed on a node: it has what it asked for, and its agent calls by itself before the kubelet tells
that it runs. What keeps a placed pod from running (an image that cannot be fetched) is told as waiting all the same.

An end is told as soon as the container has ended, and the pod is then deleted. A pod whose node does not answer stays "Terminating" for as
long as that; so one that was to go, and did not within its grace and some time, or whose node is known to be away, is told as lost and
deleted by force: its agent stops by itself (see the design), and the kubelet ends what it has no pod for as soon as it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any

import attrs

from trainmaster.core.errors import EngineFailed, TrainmasterError
from trainmaster.core.machine.stimuli import ContainerExited, ContainerLost, GangOverdue, Granted, Refused, Warned
from trainmaster.core.spec.job import Job
from trainmaster.engines.contract import Change, Free, Holder, Request
from trainmaster.engines.gangs import Gathering
from trainmaster.engines.kubernetes.errors import failed
from trainmaster.engines.kubernetes.master import pod_status as ends
from trainmaster.engines.kubernetes.master import waiting
from trainmaster.engines.kubernetes.master.gangs import Patience
from trainmaster.engines.kubernetes.master.nodes import Nodes
from trainmaster.engines.kubernetes.master.words import Explained
from trainmaster.engines.kubernetes.names import epoch_of, selector, stamped, task_of
from trainmaster.engines.kubernetes.pods.pods import request_of
from trainmaster.engines.kubernetes.settings import Settings
from trainmaster.kube.client import Client
from trainmaster.kube.errors import Conflict, KubeError, NotFound
from trainmaster.kube.kinds import PODS
from trainmaster.kube.watching import Seen, follow

AT_ONCE, BESIDE = 32, 8  # pods made at the same time, and other requests of a master beside them
BEAT, BUSY = 1.0, 0.1  # s between two looks at what time brings about, and while a gang gathers
EXPLAIN = 2.0  # s between two looks why pods do not run
AGAIN = 1.0  # s until a call that failed is made again
LATEST = 15.0  # s, the longest that a pod that was refused for a while is put off
LATE = 20.0  # s beyond its grace until a pod that does not go is given up
UNSEEN = 10.0  # s until a pod that was made and that the watch has not told of is looked for
TRIES = 3  # pods of a role, none of which ran, that found no Python
CLOSING = 15.0  # s for the last pods to be taken back

Key = tuple[str, int]
log = logging.getLogger(__name__)


@attrs.define(slots=True, eq=False)
class Held:
    """A pod that is there, as last seen. `returned`: we have deleted it; `going`: when its deletion was first known; `watched`: the watch
    has told of it.
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
    trouble: tuple[str, float] | None = None  # what is in its way, and since when

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"].get("uid") or "")


class KubernetesMaster:
    """`MasterSide` on Kubernetes. `make(request)`: the whole pod that an ask becomes. The client is ours to close."""

    def __init__(
        self, job_id: str, job: Job, client: Client, make: Callable[[Request], Mapping[str, Any]], said: Settings
    ) -> None:
        self._job_id, self._client, self._make, self._said = job_id, client, make, said
        self._roles = job.roles
        self._nodes = Nodes(client, self._node_changed, said.pods.accelerator)
        self._wanted: dict[Key, Request] = {}  # asked for, and not granted yet
        self._held: dict[Key, Held] = {}
        self._over: dict[Key, ContainerExited | ContainerLost] = {}  # what was told of those that are no more
        self._gone: set[str] = set()  # the uids of these
        self._making: set[Key] = set()
        self._unwanted: set[Key] = set()  # given back while they were being made
        self._put_off: dict[Key, float] = {}  # refused for a while -> when they are made again
        self._denied: dict[str, tuple[waiting.Trouble, float]] = {}  # role -> why, and until when none of it is made
        self._refusals: Counter[str] = Counter()  # in a row, by role
        self._vanished: Counter[str] = Counter()  # pods of a task that were deleted before they were placed, in a row
        self._ran: set[str] = set()  # roles of which a container ran
        self._without: Counter[str] = Counter()  # by role: containers that found no Python
        self._gathering = Gathering(self._now)
        self._patience = Patience(said.gang_timeout)
        self._explained = Explained(client)
        self._away = ""
        self._epoch = 0  # of this master
        self._asked = False  # whether this master has said what it wants
        self._synced = asyncio.Event()
        self._stirred = asyncio.Event()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._changes: asyncio.Queue[Change | BaseException] = asyncio.Queue()
        self._work: set[asyncio.Task[None]] = set()
        self._removing: set[asyncio.Task[None]] = set()

    # -- the contract --

    async def open(self, epoch: int) -> Sequence[Holder]:
        """The pods that are placed, those that have ended meanwhile too: what became of them is told at once."""
        self._epoch = epoch
        following = self._begin(self._follow())
        synced = asyncio.create_task(self._synced.wait())
        await asyncio.wait({following, synced}, return_when=asyncio.FIRST_COMPLETED)
        if not synced.done():
            synced.cancel()
            following.result()
        self._begin(self._nodes.watch())
        self._begin(self._beat())
        # What the first master finds was made together with it, before anybody asked: it is granted when it asks.
        placed = [(key, held) for key, held in self._held.items() if ends.node_of(held.pod) and epoch > 1]
        for key, held in placed:
            role, _, index = key[0].rpartition(":")
            held.granted, held.request = True, request_of(role, self._roles[role], int(index), key[1])
            asyncio.get_running_loop().call_soon(self._look_at, key, held)
        return [Holder(*key, held.name, ends.node_of(held.pod)) for key, held in placed]

    async def ask(self, requests: Sequence[Request]) -> None:
        wanted = {(one.task, one.serial): one for one in requests}
        for key in self._wanted.keys() - wanted.keys():
            del self._wanted[key]
            self._take_back(key)
        new = [key for key in wanted if key not in self._wanted]
        self._gathering.know(wanted[key] for key in new)
        for key in sorted(new, key=lambda key: (-wanted[key].priority, wanted[key].index)):
            self._want(key, wanted[key])
        for key in new:  # once all are known: what is there may be all that its gang waits for
            if (held := self._held.get(key)) is not None:
                self._look_at(key, held)
        if not self._asked:
            self._asked = True
            for key, held in list(self._held.items()):
                if not held.granted and key not in self._wanted and epoch_of(held.pod) <= self._epoch:
                    self._give_back(key, held)
        self._stirred.set()

    async def release(self, task: str, serial: int) -> None:
        key = (task, serial)
        self._wanted.pop(key, None)
        if not self._take_back(key):
            self._tell(self._over.get(key) or ContainerExited(*key, None, "not-needed"))
        self._stirred.set()

    async def changes(self) -> AsyncIterator[Change]:
        while True:
            change = await self._changes.get()
            if isinstance(change, BaseException):
                raise change
            yield change

    async def free(self) -> Sequence[Free]:
        return await self._nodes.free()

    async def close(self, state: str) -> None:
        self._wanted.clear()
        for key, held in list(self._held.items()):
            self._give_back(key, held)
        if self._removing:
            await asyncio.wait(self._removing, timeout=CLOSING)
        work = [*self._work, *self._removing]
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await self._client.close()

    # -- asks --

    def _want(self, key: Key, request: Request) -> None:
        held = self._held.get(key)
        if key in self._gathering:
            return  # it is told with the rest of its gang
        if held is not None and held.granted and not held.returned:
            held.request = request
            self._tell(Granted(*key, held.name, ends.node_of(held.pod)))
        elif key in self._over:
            self._tell(self._over[key])
        else:
            self._wanted[key] = request
            if held is not None:
                held.request = request
            elif key not in self._making:
                self._later(key) if self._vanished[key[0]] else self._begin(self._create(key))

    def _later(self, key: Key) -> None:
        """Make it after a while: whoever deletes the pods of this task does it again."""
        self._put_off[key] = self._now() + min(LATEST, 2.0 ** (self._vanished[key[0]] - 2))

    async def _create(self, key: Key) -> None:
        self._making.add(key)
        try:
            async with self._room:
                if (request := self._wanted.get(key)) is None or self._held_up(key):
                    return
                made = await self._made(key, stamped(self._make(request), self._epoch))
                self._denied.pop(request.role, None)
                self._refusals[request.role] = 0
                if key not in self._held:
                    self._seen(key, made, watched=False)
        except KubeError as error:
            self._not_made(key, waiting.denial(error))
        except TrainmasterError as error:
            self._refuse(key, str(error))
        finally:
            self._making.discard(key)
            if key in self._unwanted:
                self._unwanted.discard(key)
                if not self._take_back(key):
                    self._tell(ContainerExited(*key, None, "not-needed"))

    async def _made(self, key: Key, pod: Mapping[str, Any]) -> dict[str, Any]:
        """The pod as the server made it, now or before."""
        try:
            made = await self._client.create(PODS, pod, metadata=True)  # the watch tells the rest
            return ends.essence({**pod, "metadata": made["metadata"]})
        except Conflict as error:
            if not error.exists:
                raise
            try:
                found = ends.essence(await self._client.get(PODS, pod["metadata"]["name"]))
            except NotFound:  # deleted in between: it is made a moment later
                raise error from None
            if self._key(found) != key:
                message = f"a pod {pod['metadata']['name']} is there, and is not this job's"
                raise EngineFailed(message, place="engines.kubernetes.namespace", anchor="kubernetes") from error
            return found

    def _held_up(self, key: Key) -> bool:
        """Whether pods of this role are refused at the moment: this one is put off with the others."""
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
        if key in self._wanted or key in self._held:
            self._wanted.pop(key, None)
            self._tell(Refused(*key, why))

    def _take_back(self, key: Key) -> bool:
        """Delete what there is, or will be, of an ask; whether there is anything, whose end will be told."""
        self._put_off.pop(key, None)
        if (held := self._held.get(key)) is not None:
            self._give_back(key, held)
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
            pass  # nobody's that we know
        elif seen.kind == "deleted":
            held = self._held.get(key)
            if held is not None and held.uid == seen.object["metadata"]["uid"]:
                if seen.object.get("status"):
                    held.pod = ends.essence(seen.object)
                self._end(key, held, ends.vanished(held.pod, by_us=held.returned), gone=True)
        else:
            self._seen(key, ends.essence(seen.object))

    def _key(self, pod: Mapping[str, Any]) -> Key | None:
        """Whose it is; None for one that is no task's of this job."""
        found = task_of(pod)
        return found if found is not None and found[0].rpartition(":")[0] in self._roles else None

    def _seen(self, key: Key, pod: dict[str, Any], *, watched: bool = True) -> None:
        if pod["metadata"].get("uid") in self._gone:
            return
        held = self._held.get(key)
        if held is None or held.uid != pod["metadata"].get("uid"):
            held = self._held[key] = Held(pod, self._now(), self._wanted.get(key))
            self._put_off.pop(key, None)
        held.pod, held.watched = pod, held.watched or watched
        if not self._synced.is_set():
            return  # `open` tells what they are
        wanted = held.granted or held.returned or key in self._wanted or key in self._unwanted
        if self._asked and not wanted and epoch_of(pod) <= self._epoch:
            self._give_back(key, held)  # nobody wants it any more
        self._look_at(key, held)

    def _look_at(self, key: Key, held: Held) -> None:
        """Tell what is to be told of a pod."""
        if self._held.get(key) is not held:
            return
        pod = held.pod
        if ends.started(pod):
            self._ran.add(key[0].rpartition(":")[0])
        if key in self._wanted and ends.node_of(pod) and not held.granted and not held.returned:
            self._grant(key, held)
        if (end := ends.ended(pod, by_us=held.returned)) is not None:
            self._end(key, held, end)
            return
        if ends.deleted(pod) and held.going is None:
            held.going = self._now()
        node = ends.node_of(pod)
        if self._nodes.gone(node) or ((held.going is not None) and (ends.out_of_reach(pod) or self._nodes.away(node))):
            self._end(key, held, ends.given_up(pod))
        elif held.granted and not (held.warned or held.returned) and (warning := ends.warning(pod)) is not None:
            held.warned = True
            seconds, reason, figures = warning
            self._tell(Warned(*key, seconds, reason, figures))

    def _grant(self, key: Key, held: Held) -> None:
        request = self._wanted.pop(key)
        held.granted, held.request, held.placed = True, request, self._now()
        self._vanished.pop(key[0], None)
        self._patience.granted(request, self._now())
        if not self._gathering.add(key, request):
            self._tell(Granted(*key, held.name, ends.node_of(held.pod)))
        self._gathered()

    def _gathered(self) -> None:
        for gang in self._gathering.complete(self._wanted.values()):
            for key, _ in gang:
                if (held := self._held.get(key)) is not None:
                    self._tell(Granted(*key, held.name, ends.node_of(held.pod)))

    def _end(self, key: Key, held: Held, end: ends.End, *, gone: bool = False) -> None:
        """Tell the end of a pod, and delete what is left of it."""
        if key in self._wanted and not held.returned and not ends.node_of(held.pod):
            self._vanished[key[0]] += 1
        self._held.pop(key)
        self._gone.add(held.uid)
        self._wanted.pop(key, None)
        self._gathering.drop(key)
        lost = ContainerLost(*key, end.reason or "node-lost", end.figures)
        change = self._over[key] = lost if end.lost else ContainerExited(*key, end.status, end.reason, end.figures)
        role = key[0].rpartition(":")[0]
        if end.reason == "no-python" and (role not in self._ran):
            self._without[role] += 1
            if self._without[role] >= TRIES:
                self._tell(Refused(*key, f"no Python >= 3.11 was found on {end.figures['node']}"))
        self._tell(change)
        if not gone:
            self._remove(key, held, 0 if end.lost else None)
        self._stirred.set()

    def _give_back(self, key: Key, held: Held) -> None:
        if held.returned:
            return
        held.returned, held.going = True, held.going or self._now()
        self._gathering.drop(key)
        self._remove(key, held, None)
        self._look_at(key, held)

    def _remove(self, key: Key, held: Held, grace: int | None) -> None:
        task = asyncio.create_task(self._deleted(key, held, grace))
        self._removing.add(task)
        task.add_done_callback(self._removing.discard)

    async def _deleted(self, key: Key, held: Held, grace: int | None) -> None:
        """Have a pod deleted, as often as it takes."""
        while True:
            try:
                if not await self._client.delete(PODS, held.name, grace=grace, uid=held.uid) and not held.watched:
                    self._vanish(key, held)
                held.going = self._now()  # its grace begins
            except Conflict:  # another one by that name
                self._vanish(key, held)
            except KubeError as error:
                log.warning("pod %s is not deleted yet: %s", held.name, error)
                await asyncio.sleep(AGAIN)
                continue
            return

    def _vanish(self, key: Key, held: Held) -> None:
        if self._held.get(key) is held:
            self._end(key, held, ends.vanished(held.pod, by_us=held.returned), gone=True)

    def _node_changed(self, node: str) -> None:
        for key, held in list(self._held.items()):
            if ends.node_of(held.pod) == node:
                self._look_at(key, held)

    # -- time --

    async def _beat(self) -> None:
        explained = self._now()
        while True:
            self._stirred.clear()
            now = self._now()
            for key in [key for key, later in self._put_off.items() if later <= now]:
                del self._put_off[key]
                if key in self._wanted and key not in self._held:
                    self._begin(self._create(key))
            self._gathered()
            for gang in self._patience.overdue(self._wanted.values(), now):
                self._tell(GangOverdue(gang, self._said.gang_timeout or 0.0))
            for key, held in list(self._held.items()):
                self._overdue(key, held, now)
            await self._check(now)
            if now - explained >= EXPLAIN:
                explained = now
                await self._explain()
            soonest = min(self._put_off.values(), default=now + BEAT) - now
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUSY if self._gathering else max(BUSY, min(BEAT, soonest))):
                    await self._stirred.wait()

    def _overdue(self, key: Key, held: Held, now: float) -> None:
        if held.going is not None:
            about, spec = held.pod["metadata"], held.pod["spec"]
            grace = about.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds", 30))
            if now - held.going > grace + LATE and not self._away:
                log.warning("pod %s does not end on %s", held.name, ends.node_of(held.pod) or "no node")
                self._end(key, held, ends.given_up(held.pod))

    async def _check(self, now: float) -> None:
        """Look for pods that the watch has not told of: they may have gone before it began."""
        unseen = {key: held for key, held in self._held.items() if not held.watched and now - held.since > UNSEEN}
        if not unseen or self._away:
            return
        with contextlib.suppress(KubeError):
            found, _ = await self._client.list(PODS, labels=selector(self._job_id), metadata=True)
            there = {pod["metadata"]["uid"] for pod in found}
            for key, held in unseen.items():
                held.since = now
                if held.uid not in there:
                    self._vanish(key, held)

    async def _explain(self) -> None:
        """Say what is waited for, and give up what never will be."""
        nodes = await self._nodes.free() if any(not ends.node_of(held.pod) for held in self._held.values()) else ()
        denied = [(self._wanted[key], self._denied[role][0]) for key in self._put_off
                  if key in self._wanted and (role := self._wanted[key].role) in self._denied]  # fmt: skip
        told, hopeless = await self._explained.look(self._held, denied, nodes, self._now(), self._away, self._ran)
        for key, why in hopeless:
            self._refuse(key, why)
        if told is not None:
            self._tell(told)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _tell(self, change: Change) -> None:
        self._changes.put_nowait(change)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._changes.put_nowait(error)
