"""Kubernetes as the submitting side uses it: whether a job can run there, submitting, and what became of it.

A job is known to later commands as `CONTEXT@NAMESPACE/ID`, its `application`: the context of the kubeconfig that it was submitted with, so
that another current context changes nothing about it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from base64 import b64decode
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from trainmaster import interrupts
from trainmaster.core.errors import BadInput, EngineFailed, TrainmasterError
from trainmaster.core.machine.reasons import words
from trainmaster.core.spec.reading import job_to
from trainmaster.core.spec.redaction import secrets_of
from trainmaster.engines.contract import Free, Queue, Request, Shipped, Submission, Submitted
from trainmaster.engines.kubernetes.container.entry import (
    MASTER_SECRET,
    RUNTIME,
    Piece,
    agent_key,
    boot,
    digest_of,
    inside,
)
from trainmaster.engines.kubernetes.errors import failed
from trainmaster.engines.kubernetes.master import waiting
from trainmaster.engines.kubernetes.master.nodes import Nodes
from trainmaster.engines.kubernetes.master.runtime import PORT, pod_of
from trainmaster.engines.kubernetes.names import JOB as LABEL
from trainmaster.engines.kubernetes.names import MASTER_PART, dns_label, label_value, run_name, selector
from trainmaster.engines.kubernetes.pods.pods import IMAGE, Shape, check, image_of, master_pod, pod_groups, task_pod
from trainmaster.engines.kubernetes.settings import CLIENT, Settings, settings
from trainmaster.engines.kubernetes.submit import initial_pods as first
from trainmaster.engines.kubernetes.submit import masters, objects, rights, shipping
from trainmaster.engines.kubernetes.submit.objects import ENDED, STAMP, master_name, owner_of
from trainmaster.engines.kubernetes.submit.store import Store, parts, stored_elsewhere, there
from trainmaster.engines.packed import stores_of
from trainmaster.kube.blocking import Blocking
from trainmaster.kube.client import Client
from trainmaster.kube.config import Config, load
from trainmaster.kube.errors import Conflict, Forbidden, Invalid, KubeError, NotFound
from trainmaster.kube.kinds import CONFIGMAPS, NAMESPACES, NODES, POD_GROUPS, PODS, REPLICA_SETS, SECRETS, SERVICES
from trainmaster.log.configmaps import SCHEME, url_of

PLACE = "engines.kubernetes"
NOTHING_RUNS = "nothing runs its master: its submission was broken off, or somebody has deleted its ReplicaSet"
UNDONE = 10.0  # s for the end of what was submitted and is not wanted
ENDED_WITHIN = 120.0  # s until the pods of a job that is ended by force are gone
_DRY = "trainmaster-check"
_SHOWN = 40  # characters of a name in an id

T = TypeVar("T")


class KubernetesClient:
    """`OnCluster` of Kubernetes."""

    def __init__(self, environ: Mapping[str, str] | None = None, context: str = "", namespace: str = "") -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self.context, self.namespace = context, namespace

    @property
    def _image(self) -> str:
        """The site's, of roles for which the job names none."""
        return self._environ.get(IMAGE, "")

    def config(self, said: Settings | None = None, application: str = "") -> Config:
        """Where a job is or would be: as its application says, else as the job says, else as the kubeconfig has it."""
        context, namespace = self.context, self.namespace
        if said is not None:
            context, namespace = said.context or context, said.namespace or namespace
        if application:
            context, namespace, _ = parts(application)
        try:
            return load(self._environ, context=context, namespace=namespace)
        except KubeError as error:
            raise failed(error) from error

    def asked(
        self, config: Config, question: Callable[[Client], Coroutine[Any, Any, T]],
        run: Callable[[Coroutine[Any, Any, T]], T] = asyncio.run,
    ) -> T:  # fmt: skip
        async def ask() -> T:
            async with Client(config) as client:
                return await question(client)

        try:
            return run(ask())
        except KubeError as error:
            raise failed(error, config) from error
        except BaseExceptionGroup as group:  # of requests that were made side by side
            first = _first(group)
            raise (failed(first, config) if isinstance(first, KubeError) else first) from group

    @property
    def place(self) -> str:
        """Where the API server is."""
        return self.config().server

    # -- before --

    def check(self, job: Any, requests: Sequence[Request]) -> None:
        """Raise BadInput where the job cannot run there: no right to, no image, a pod that the cluster refuses."""
        said = settings(job.engines.get("kubernetes") or {})
        check(job, said)
        for role in (MASTER_PART, *job.roles):
            image_of(job, role, self._image)
        if job.checkpoint is not None and not job.checkpoint.url and not stored_elsewhere(job):
            raise BadInput(
                "the job's checkpoints have no place: what a job on Kubernetes keeps without storage is its event log alone",
                place="checkpoint.url", mend="set checkpoint.url or storage to a URL that the pods reach (s3://, hdfs://)",
                anchor="no-storage",
            )  # fmt: skip
        self.asked(self.config(said), lambda client: self._checked(client, job, requests, said))

    async def _checked(self, client: Client, job: Any, requests: Sequence[Request], said: Settings) -> None:
        await exists(client)
        await rights.check(client, said)
        shape = Shape(_DRY, job, said, self._image, None)
        made = {request.role: request for request in requests}
        tried = {
            f"roles.{role}": task_pod(shape, request, inside(_DRY, role, [], "", {}, said.runtime_image))
            for role, request in made.items()
        }
        if said.run_master != CLIENT:
            pod = master_pod(shape, inside(_DRY, "", [], "", {}, said.runtime_image))
            tried["master"] = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": _DRY}}
        answers = await asyncio.gather(*(_tried(client, *one) for one in tried.items()), return_exceptions=True)
        for answer in answers:  # of what is wrong with several, the first is told
            if answer is not None:
                raise answer

    def objects(self, job: Any, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """What submitting makes, and a pod of each role that its master makes then; without secrets, and without what files hold."""
        said = settings(job.engines.get("kubernetes") or {})
        config = self.config(said)
        job_id = dns_label(f"{job.name.lower()[:_SHOWN]}-dryrun")
        owned = owner_of(job_id, "")
        pieces = [] if said.runtime_image else [Piece(RUNTIME, "", (f"trainmaster-{RUNTIME}",), unpacked=True)]
        shape = Shape(job_id, job, said, self._image)
        environment = {"TRAINMASTER_ADDRESS": "", "TRAINMASTER_OWNER": ""}
        files = boot(pieces)
        digest = digest_of(files)
        inner = inside(job_id, "", pieces, digest, environment, said.runtime_image)
        account = self.asked(config, lambda client: rights.account(client, said)) if said.run_master != CLIENT else ""
        made = [
            objects.root(job_id, _there(job_to(job), config.namespace), {}, ""),
            objects.run(job_id, owned, files),
            objects.secret(job_id, owned, {key: {} for key in (*map(agent_key, job.roles), MASTER_SECRET)}, ""),
            objects.names(job_id, owned),
            *pod_groups(shape),
        ]
        if said.run_master != CLIENT:
            made += [
                *([] if account else (one for _, one in objects.account(job_id, owned))),
                objects.way_to_master(job_id, owned, PORT),
                objects.masters_set(job_id, owned, master_pod(shape, inner, account or job_id)),
            ]
        of_role = {request.role: request for request in reversed(requests)}
        for role, request in of_role.items():
            inner = inside(job_id, role, pieces, digest, {}, said.runtime_image)
            made.append({"apiVersion": "v1", "kind": "Pod", **task_pod(shape, request, inner)})
        for one in made:  # who owns what is known once it is made
            one["metadata"].pop("ownerReferences", None)
            one["metadata"]["namespace"] = config.namespace
        return made

    def namespace_of(self) -> str:
        """The namespace that jobs go to which name none."""
        return self.config().namespace

    def free(self) -> Sequence[Free]:
        """The nodes, and what is free on each. BadInput where the user is not told."""

        async def look(client: Client) -> Sequence[Free]:
            for kind in (NODES, PODS):
                if not await client.review("list", kind, namespace="*"):
                    raise BadInput(
                        f"{client.config.user or 'you'} may not list the {kind.plural} of the whole cluster, so what its nodes have free "
                        "is not known", place=f"context {client.config.context}",
                        mend="jobs need no such right: tm doctor looks at those that they need", anchor="rights",
                    )  # fmt: skip
            return await Nodes(client, lambda node: None).free()

        return self.asked(self.config(), look)

    def queues(self) -> Sequence[Queue]:
        """None: what shares a cluster out is a part of its own there."""
        return ()

    # -- submitting --

    def store(self, job: Any = None) -> Store:
        return Store(self, job)

    def submit(self, submission: Submission) -> Submitted:
        """Start the job's master in a pod, or, with `run_master: client`, have it started on this machine."""
        job = submission.job
        said = settings(job.engines.get("kubernetes") or {})
        config = self.config(said)
        files = list(submission.files)
        if not said.runtime_image:
            files.insert(0, Shipped(RUNTIME, submission.runtime(without(job)), unpacked=True))
        has_begun = False

        async def start(client: Client) -> dict[str, Any] | None:
            nonlocal has_begun
            read, account = await self._readied(client, said, files)
            has_begun = True
            return await self._started(client, submission, said, read, account)

        def undo() -> None:
            if has_begun:
                with contextlib.suppress(TrainmasterError, TimeoutError):
                    removal, job_id, certificate = objects.remove_submission, submission.job_id, submission.certificate
                    self.asked(config, lambda client: asyncio.wait_for(removal(client, job_id, certificate), UNDONE))

        master = self.asked(config, start, lambda work: interrupts.run(work, undo))
        return Submitted(f"{config.context}@{config.namespace}/{submission.job_id}", master=master)

    async def _readied(
        self, client: Client, said: Settings, files: Sequence[Shipped]
    ) -> tuple[list[tuple[Piece, bytes]], str]:
        """What the pods bring along, and the master's account, where it is not one of the job's own."""
        reading = asyncio.create_task(asyncio.to_thread(shipping.read, files))
        tidying = asyncio.create_task(objects.tidy(client))
        account = "" if said.run_master == CLIENT else await rights.account(client, said)
        read = await reading
        await asyncio.gather(tidying, return_exceptions=True)  # what failed of it is for the next one to do
        return read, account

    async def _started(
        self, client: Client, submission: Submission, said: Settings, read: Sequence[tuple[Piece, bytes]], account: str
    ) -> dict[str, Any] | None:
        """What the master is told, where it is not the cluster's to start."""
        pieces = [piece for piece, _ in read]
        job_id, job, site, certificate = (
            submission.job_id,
            submission.job,
            dict(submission.site),
            submission.certificate,
        )
        description = _there(job_to(job), client.namespace)
        here, secret = said.run_master == CLIENT, submission.secret
        made = objects.root(job_id, description, site, certificate, here)
        root = await client.create(CONFIGMAPS, made)
        environment, files = _environment(site), boot(pieces)
        secrets, stores, token = secret.get("secrets") or {}, secret.get("stores") or {}, secret["token"]
        of_master = {
            "secrets": secrets, "stores": stores, "token": token, "key": secret["key"], "boot": digest_of(files),
            "certificate": certificate, "job_id": job_id, "job": description,
            "site": site, "namespace": client.namespace, "image": self._image,
            "environment": environment, "storage_of_agents": stored_elsewhere(job),
            "pieces": [{"name": one.name, "digest": one.digest, "secrets": one.secrets, "unpacked": one.unpacked} for one in pieces],
        }  # fmt: skip
        running = await client.create(
            CONFIGMAPS, objects.run(job_id, owner_of(job_id, root["metadata"]["uid"]), files), metadata=True
        )
        owner = owner_of(run_name(job_id), running["metadata"]["uid"])
        of_agents = {
            agent_key(role): {
                "secrets": secrets_of(secrets, role),
                "stores": stores_of(stores, job, role),
                "token": token,
            }
            for role in job.roles
        }
        carriers = {**of_agents, MASTER_SECRET: of_master}
        kept = await client.create(SECRETS, objects.secret(job_id, owner, carriers, token), metadata=True)
        owner = owner_of(job_id, kept["metadata"]["uid"], "Secret")
        shape = Shape(job_id, job, said, self._image, owner)
        making: list[Coroutine[Any, Any, Any]] = [
            client.create(SERVICES, objects.names(job_id, owner)), shipping.put(client, owner, read),
            *(client.create(POD_GROUPS, group) for group in pod_groups(shape)),
        ]  # fmt: skip
        if here:
            await asyncio.gather(*making)
            return {**of_master, "owner": owner["uid"]}
        if not account:
            making += [client.create(kind, thing) for kind, thing in objects.account(job_id, owner)]
        way, *_ = await asyncio.gather(client.create(SERVICES, objects.way_to_master(job_id, owner, PORT)), *making)
        address = {"TRAINMASTER_ADDRESS": way["spec"]["clusterIP"], "TRAINMASTER_OWNER": str(owner["uid"])}
        inner = inside(job_id, "", pieces, of_master["boot"], {**environment, **address}, said.runtime_image)
        template = master_pod(shape, inner, account or job_id)
        await client.create(REPLICA_SETS, objects.masters_set(job_id, owner, template), strict=True)
        spec = first.spec(of_master, job, way["spec"]["clusterIP"])
        await first.make(client, job_id, submission.requests, pod_of(of_master, shape, spec))
        return None

    def brings(self, url: str) -> bool:
        """Whether the cluster brings a file of its own to containers: never."""
        return False

    def newer_tokens(self, job: Any) -> dict[str, Any]:
        raise BadInput("a job on Kubernetes has no tokens that end: its pods have accounts", anchor="tokens")

    # -- afterwards --

    def found(self, wanted: str) -> dict[str, str]:
        """Our jobs in the namespace that are meant by `wanted`, the beginning of an id or an application: id -> application."""
        config = self.config()
        rows = self.asked(config, objects.roots_in)
        made = {
            row["metadata"]["name"]: f"{config.context}@{config.namespace}/{row['metadata']['name']}" for row in rows
        }
        return {job: text for job, text in made.items() if job.startswith(wanted) or text == wanted}

    def fate(self, application: str) -> tuple[str, str]:
        """`running` while Kubernetes runs its master or will; `submitting` where it may not have been asked yet, `removed` where it never
        will be; `ended`, `failed`, or `unknown`; and what Kubernetes says of it.
        """
        _, namespace, job_id = parts(application)

        async def look(client: Client) -> tuple[str, str]:
            root = await there(client, CONFIGMAPS, job_id)
            if root is None:
                return "unknown", f"there is no ConfigMap {job_id} in namespace {namespace}: somebody has deleted it"
            made = await there(client, REPLICA_SETS, master_name(job_id))
            if made is None and await there(client, SECRETS, job_id) is not None:
                if objects.beside(root):
                    return "running", ""
                late = datetime.now(UTC) - objects.made(root) > objects.SUBMITTED_WITHIN
                return ("removed" if late else "submitting"), NOTHING_RUNS
            if made is None or "deletionTimestamp" in made["metadata"]:
                return "ended", f"what it runs by was removed from namespace {namespace}"
            runs = (made.get("status") or {}).get("readyReplicas")
            why = None if runs else masters.hopeless(await masters.pods(client, job_id), datetime.now(UTC))
            if why is not None:
                return "failed", words(*why)
            return "running", ""

        return self.asked(self.config(application=application), look)

    def given_up(self, application: str) -> tuple[str, dict[str, Any]]:
        """Why Kubernetes starts no master of it any more: the reason, and its figures."""
        job_id = parts(application)[2]
        pods = self.asked(self.config(application=application), lambda client: masters.pods(client, job_id))
        return masters.hopeless(pods, datetime.now(UTC)) or ("master-failed", {"masters": 1, "detail": ""})

    def waits(self, application: str, job: Any) -> str:
        """What a job waits for whose master does not answer."""
        job_id = parts(application)[2]

        async def look(client: Client) -> str:
            made = await masters.pods(client, job_id)
            return await masters.waits(client, await there(client, REPLICA_SETS, master_name(job_id)), made)

        state, why = self.fate(application)
        if state == "submitting":
            return masters.UNASKED
        if state != "running":
            return f"Kubernetes has it as {state}: {why}"
        return self.asked(self.config(application=application), look)

    def end(self, application: str) -> None:
        """Have all of it ended but its history, and wait until its pods are gone."""
        job_id = parts(application)[2]

        async def remove(client: Client) -> None:
            # First: with its Secret and without its ReplicaSet it would be one that is being submitted.
            await client.delete(SECRETS, job_id, propagation="Background")
            await client.delete(CONFIGMAPS, run_name(job_id), propagation="Background")
            await client.delete(REPLICA_SETS, master_name(job_id), propagation="Background")
            await client.delete_all(PODS, f"{LABEL}={label_value(job_id)}", grace=5)
            ended = {ENDED: datetime.now(UTC).strftime(STAMP)}
            with contextlib.suppress(NotFound):  # who has deleted it has forgotten it
                await client.patch(CONFIGMAPS, job_id, {"metadata": {"annotations": ended}})
            left: Sequence[Any] = ()
            try:
                async with asyncio.timeout(ENDED_WITHIN):
                    while left := (await client.list(PODS, labels=f"{LABEL}={label_value(job_id)}"))[0]:  # noqa: ASYNC110  it has to be asked
                        await asyncio.sleep(0.1)
            except TimeoutError:
                names = ", ".join(pod["metadata"]["name"] for pod in left[:5])
                raise EngineFailed(
                    f"after {ENDED_WITHIN:.0f} s pods of {job_id} are not gone yet: {names}", anchor="kubernetes",
                    mend="Kubernetes removes them once their node answers, or is given up: kubectl get pods,nodes -o wide",
                ) from None  # fmt: skip

        self.asked(self.config(application=application), remove)

    def forget(self, job_id: str, application: str) -> None:
        """Delete the job's ConfigMap, and by it all that it owns: its log, its Secret, its pods."""
        self.end(application)

        async def remove(client: Client) -> None:
            await client.delete(CONFIGMAPS, job_id, propagation="Background")

        self.asked(self.config(application=application), remove)

    def caches(self) -> Sequence[tuple[str, int, float]]:
        """Nothing outlasts its job there."""
        return ()

    def clear(self, url: str) -> None:
        """There is none to clear."""

    def master_payload(self, application: str) -> dict[str, Any] | None:
        """Return what a master is told that takes up a job beside its client; None where there is nothing to take up."""
        job_id = parts(application)[2]
        kept = self.asked(self.config(application=application), lambda client: there(client, SECRETS, job_id))
        if kept is None:
            return None
        told: dict[str, Any] = json.loads(b64decode(kept["data"][MASTER_SECRET]))
        return {**told, "owner": kept["metadata"]["uid"]}

    def reach(self, application: str, address: str, within: float) -> socket.socket:
        """Return a connection to the job's master, through the API server. Raises OSError without a master, BadInput without the right."""
        _, _, job_id = parts(application)
        blocking = _blocking(self.config(application=application))
        try:
            pods = blocking.list(PODS, labels=selector(job_id, MASTER_PART))[0]
            running = [
                pod
                for pod in pods
                if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
            ]
            if not running:
                raise ConnectionRefusedError("its master's pod does not run")
            return blocking.connect(running[0]["metadata"]["name"], int(address.rpartition(":")[2]))
        except Forbidden as error:  # a master is there: whoever may not ask it must not be told that none answers
            raise failed(error, blocking.config) from error
        except KubeError as error:
            raise ConnectionError(str(error)) from error


def without(job: Any) -> Collection[str]:
    """Packages that the job has no use for in its pods."""
    text = json.dumps(job_to(job)).lower()
    left = set()
    if "hdfs://" not in text and "viewfs://" not in text:
        left |= {"hdfs-native", "protobuf"}
    if not any(f"{scheme}://" in text for scheme in ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl")):
        left.add("obstore")
    return left


def _there(job: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The job as it is told in the cluster, where no context of a kubeconfig means anything."""
    if not str(job.get("storage") or "").startswith(SCHEME):
        return dict(job)
    return {**job, "storage": url_of("", namespace)}


def _environment(site: Mapping[str, Any]) -> dict[str, str]:
    return {"TRAINMASTER_PYTHON": f"{site['environment']}/bin/python3"} if site.get("environment") else {}


async def exists(client: Client) -> None:
    """Raise BadInput where the client's namespace is not there."""
    try:
        await client.get(NAMESPACES, client.namespace)
    except NotFound:
        raise BadInput(
            f"there is no namespace {client.namespace}", place=f"{PLACE}.namespace: {client.namespace}",
            mend="see them: kubectl get namespaces; name one with --set engines.kubernetes.namespace=NAME", anchor="namespace",
        ) from None  # fmt: skip
    except Forbidden:  # who may make pods in it need not be allowed to see it
        return


async def _tried(client: Client, place: str, pod: Mapping[str, Any]) -> None:
    """Whether the cluster would make such a pod, for what the job says at `place`: policies and classes are the server's to judge."""
    try:
        await client.create(PODS, pod, dry_run=True, strict=True)
    except Conflict:
        return
    except (Forbidden, Invalid) as error:
        trouble = waiting.denial(error)
        if trouble.hopeless is None:  # a quota that is full now
            return
        raise BadInput(
            f"{place.rpartition('.')[2]}: {trouble.detail}",
            place=place,
            mend="change the job, or choose another namespace",
            anchor="pod-refused",
        ) from error


_clients: dict[tuple[object, ...], Blocking] = {}


def _blocking(config: Config) -> Blocking:
    """One for all connections of a process: what is forwarded is served by its loop."""
    key = (os.getpid(), config.server, config.ca, config.source, config.context, config.namespace)
    if key not in _clients:
        _clients[key] = Blocking(config)
    return _clients[key]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
