"""Check whether a job can run on Kubernetes, submit it, and tell what became of it.

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

import attrs

from trainmaster import interrupts
from trainmaster.core.containers import Request
from trainmaster.core.errors import BadInput, EngineFailed, TrainmasterError
from trainmaster.core.machine.reasons import words
from trainmaster.core.spec.reading import job_to
from trainmaster.core.spec.redaction import secrets_of
from trainmaster.engines.contract import Free, OnCluster, Shipped, Submission, Submitted
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
from trainmaster.engines.kubernetes.master.nodes import Nodes
from trainmaster.engines.kubernetes.master.runtime import PORT, pod_of
from trainmaster.engines.kubernetes.names import JOB as LABEL
from trainmaster.engines.kubernetes.names import MASTER_PART, TASK_PART, dns_label, label_value, run_name, selector
from trainmaster.engines.kubernetes.pods.keys import PLACE
from trainmaster.engines.kubernetes.pods.pods import IMAGE, Shape, check, image_of, master_pod, pod_groups, task_pod
from trainmaster.engines.kubernetes.settings import CLIENT, MASTER, Settings, settings
from trainmaster.engines.kubernetes.submit import initial_pods, masters, objects, rights, shipping
from trainmaster.engines.kubernetes.submit.objects import ENDED, STAMP, master_name, owner_of
from trainmaster.engines.kubernetes.submit.references import check_references
from trainmaster.engines.kubernetes.submit.refusals import try_pod
from trainmaster.engines.kubernetes.submit.store import Store, get_or_none, parts, stored_elsewhere
from trainmaster.engines.packed import stores_of
from trainmaster.kube.blocking import Blocking
from trainmaster.kube.client import Client
from trainmaster.kube.config import Config, load
from trainmaster.kube.errors import Forbidden, KubeError, NotFound
from trainmaster.kube.kinds import CONFIGMAPS, NAMESPACES, NODES, POD_GROUPS, PODS, REPLICA_SETS, SECRETS, SERVICES
from trainmaster.log.configmaps import SCHEME, url_of

NOTHING_RUNS = "nothing runs its master: its submission was broken off, or somebody has deleted its ReplicaSet"
UNDONE = 10.0  # s in which an interrupted submission removes its objects
ENDED_WITHIN = 120.0  # s until the pods of a job that is ended by force are gone
_DRY = "trainmaster-check"
_SHOWN = 40  # characters of a name in an id

T = TypeVar("T")


class KubernetesClient(OnCluster):
    """The client side of Kubernetes."""

    def __init__(self, environ: Mapping[str, str] | None = None, context: str = "", namespace: str = "") -> None:
        self._environ = dict(os.environ if environ is None else environ)
        self.context, self.namespace = context, namespace

    @property
    def _image(self) -> str:
        """Return the site's image, for roles for which the job names none."""
        return self._environ.get(IMAGE, "")

    def config(self, options: Settings | None = None, application: str = "") -> Config:
        """Return the cluster that a job is or would be on: its application's, else the one of its settings, else the kubeconfig's."""
        context, namespace = self.context, self.namespace
        if options is not None:
            context, namespace = options.context or context, options.namespace or namespace
        if application:
            context, namespace, _ = parts(application)
        try:
            return load(self._environ, context=context, namespace=namespace)
        except KubeError as error:
            raise failed(error) from error

    def call(
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
            error_of_request = _first_error(group)
            raise (
                failed(error_of_request, config) if isinstance(error_of_request, KubeError) else error_of_request
            ) from group

    @property
    def place(self) -> str:
        """Return the URL of the API server."""
        return self.config().server

    # -- before --

    def check(self, job: Any, requests: Sequence[Request]) -> None:
        """Raise BadInput where the job cannot run there: no right to, no image, a pod that the cluster refuses."""
        options = settings(job.engines.get("kubernetes") or {})
        check(job, options)
        for role in (MASTER, *job.roles):
            image_of(job, role, self._image)
        if job.checkpoint is not None and not job.checkpoint.url and not stored_elsewhere(job):
            raise BadInput(
                "the job's checkpoints have no place: what a job on Kubernetes keeps without storage is its event log alone",
                place="checkpoint.url", anchor="no-storage",
                mend="set checkpoint.url or storage to a URL that the pods reach (s3://, hdfs://); or mount a volume by "
                "engines.kubernetes.volumes, and write checkpoint.url: file://PATH",
            )  # fmt: skip
        self.call(self.config(options), lambda client: self._check_on_cluster(client, job, requests, options))

    async def _check_on_cluster(self, client: Client, job: Any, requests: Sequence[Request], options: Settings) -> None:
        await rights.check(client, options, await exists(client))
        shape = Shape(_DRY, job, options, self._image, None)
        inner = {role: inside(_DRY, role, [], "", {}, options.runtime_image) for role in ("", *job.roles)}
        requests_by_role = {request.role: request for request in requests}
        trial_pods = {role: task_pod(shape, request, inner[role]) for role, request in requests_by_role.items()}
        if options.run_master != CLIENT:
            pod = master_pod(shape, inner[""])
            pod["metadata"]["name"] = _DRY
            trial_pods[MASTER] = {"apiVersion": "v1", "kind": "Pod", **pod}
        answers = await asyncio.gather(
            *(try_pod(client, shape, role, pod) for role, pod in trial_pods.items()), return_exceptions=True
        )
        for answer in answers:  # of several failures the first is raised
            if answer is not None:
                raise answer
        ours = {volume["name"] for bootstrap in inner.values() for volume in bootstrap.volumes}
        await check_references(client, options, trial_pods, ours)

    def objects(self, job: Any, requests: Sequence[Request]) -> list[dict[str, Any]]:
        """Return the objects that submitting makes, and a pod of each role as its master makes it; without secrets and files' contents."""
        options = settings(job.engines.get("kubernetes") or {})
        config = self.config(options)
        job_id = dns_label(f"{job.name.lower()[:_SHOWN]}-dryrun")
        owned = owner_of(job_id, "")
        pieces = [] if options.runtime_image else [Piece(RUNTIME, "", (f"trainmaster-{RUNTIME}",), unpacked=True)]
        shape = Shape(job_id, job, options, self._image)
        environment = {"TRAINMASTER_ADDRESS": "", "TRAINMASTER_OWNER": ""}
        files = boot(pieces)
        digest = digest_of(files)
        inner = inside(job_id, "", pieces, digest, environment, options.runtime_image)
        account = (
            self.call(config, lambda client: rights.account(client, options)) if options.run_master != CLIENT else ""
        )
        manifests = [
            objects.root(job_id, _as_in_cluster(job_to(job), config.namespace), {}, ""),
            objects.run(job_id, owned, files),
            objects.secret(job_id, owned, {key: {} for key in (*map(agent_key, job.roles), MASTER_SECRET)}, ""),
            objects.names(job_id, owned),
            *pod_groups(shape),
        ]
        if options.run_master != CLIENT:
            manifests += [
                *([] if account else (manifest for _, manifest in objects.account(job_id, owned))),
                objects.way_to_master(job_id, owned, PORT),
                objects.masters_set(job_id, owned, master_pod(shape, inner, account or job_id)),
            ]
        of_role = {request.role: request for request in reversed(requests)}
        for role, request in of_role.items():
            inner = inside(job_id, role, pieces, digest, {}, options.runtime_image)
            manifests.append({"apiVersion": "v1", "kind": "Pod", **task_pod(shape, request, inner)})
        for manifest in manifests:  # owners are known once they are made
            manifest["metadata"].pop("ownerReferences", None)
            manifest["metadata"]["namespace"] = config.namespace
        return manifests

    def namespace_of(self) -> str:
        """Return the namespace of jobs that name none."""
        return self.config().namespace

    def free(self) -> Sequence[Free]:
        """Return the nodes, and what is free on each. Raises BadInput where the user may not know."""

        async def look(client: Client) -> Sequence[Free]:
            for kind in (NODES, PODS):
                if not await client.review("list", kind, namespace="*"):
                    raise BadInput(
                        f"{client.config.user or 'you'} may not list the {kind.plural} of the whole cluster, so what its nodes have free "
                        "is not known", place=f"context {client.config.context}",
                        mend="jobs need no such right: tm doctor looks at those that they need", anchor="rights",
                    )  # fmt: skip
            return await Nodes(client, lambda node: None).free()

        return self.call(self.config(), look)

    # -- submitting --

    def store(self, job: Any = None) -> Store:
        return Store(self, job)

    def submit(self, submission: Submission) -> Submitted:
        """Start the job's master in a pod, or, with `run_master: client`, have it started on this machine."""
        job = submission.job
        options = settings(job.engines.get("kubernetes") or {})
        config = self.config(options)
        application = f"{config.context}@{config.namespace}/{submission.job_id}"
        submission = attrs.evolve(submission, site={**submission.site, "link": self.link(application, job)})
        files = list(submission.files)
        if not options.runtime_image:
            files.insert(0, Shipped(RUNTIME, submission.runtime(without(job)), unpacked=True))
        has_begun = False

        async def start(client: Client) -> dict[str, Any] | None:
            nonlocal has_begun
            shipped, account = await self._prepare(client, options, files)
            has_begun = True
            return await self._start(client, submission, options, shipped, account)

        def undo() -> None:
            if has_begun:
                with contextlib.suppress(TrainmasterError, TimeoutError):
                    removal, job_id, certificate = objects.remove_submission, submission.job_id, submission.certificate
                    self.call(config, lambda client: asyncio.wait_for(removal(client, job_id, certificate), UNDONE))

        master = self.call(config, start, lambda work: interrupts.run(work, undo))
        return Submitted(application, master=master)

    def link(self, application: str, job: Any = None) -> str:
        """Return the job's page where its settings name a console that has one: Kubernetes has none of its own."""
        page = "" if job is None else settings(job.engines.get("kubernetes") or {}).page
        _, namespace, job_id = parts(application)
        return page.replace("{namespace}", namespace).replace("{job}", job_id)

    async def _prepare(
        self, client: Client, options: Settings, files: Sequence[Shipped]
    ) -> tuple[list[tuple[Piece, bytes]], str]:
        """Tidy the namespace; return the files of the pods, and the master's account, "" where it is one of the job's own."""
        reading = asyncio.create_task(asyncio.to_thread(shipping.read, files))
        tidying = asyncio.create_task(objects.tidy(client))
        account = "" if options.run_master == CLIENT else await rights.account(client, options)
        shipped = await reading
        await asyncio.gather(tidying, return_exceptions=True)  # the next submission tidies what is left
        return shipped, account

    async def _start(
        self,
        client: Client,
        submission: Submission,
        options: Settings,
        shipped: Sequence[tuple[Piece, bytes]],
        account: str,
    ) -> dict[str, Any] | None:
        """Make the job's objects; return the master's payload where the cluster does not start the master."""
        pieces = [piece for piece, _ in shipped]
        job_id, job = submission.job_id, submission.job
        site, certificate = dict(submission.site), submission.certificate
        description = _as_in_cluster(job_to(job), client.namespace)
        on_client, secret = options.run_master == CLIENT, submission.secret
        root_manifest = objects.root(job_id, description, site, certificate, on_client)
        root = await client.create(CONFIGMAPS, root_manifest)
        environment, files = _environment(site), boot(pieces)
        secrets, stores, token = secret.get("secrets") or {}, secret.get("stores") or {}, secret["token"]
        of_master = {
            "secrets": secrets, "stores": stores, "token": token, "key": secret["key"], "boot": digest_of(files),
            "certificate": certificate, "job_id": job_id, "job": description,
            "site": site, "namespace": client.namespace, "image": self._image,
            "environment": environment, "storage_of_agents": stored_elsewhere(job),
            "pieces": [
                {"name": piece.name, "digest": piece.digest, "secrets": piece.secrets, "unpacked": piece.unpacked} for piece in pieces
            ],
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
        job_secret = await client.create(SECRETS, objects.secret(job_id, owner, carriers, token), metadata=True)
        owner = owner_of(job_id, job_secret["metadata"]["uid"], "Secret")
        shape = Shape(job_id, job, options, self._image, owner)
        making: list[Coroutine[Any, Any, Any]] = [
            client.create(SERVICES, objects.names(job_id, owner)), shipping.put(client, owner, shipped),
            *(client.create(POD_GROUPS, group) for group in pod_groups(shape)),
        ]  # fmt: skip
        if on_client:
            await asyncio.gather(*making)
            return {**of_master, "owner": owner["uid"]}
        if not account:
            making += [client.create(kind, manifest) for kind, manifest in objects.account(job_id, owner)]
        service, *_ = await asyncio.gather(client.create(SERVICES, objects.way_to_master(job_id, owner, PORT)), *making)
        address = {"TRAINMASTER_ADDRESS": service["spec"]["clusterIP"], "TRAINMASTER_OWNER": str(owner["uid"])}
        inner = inside(job_id, "", pieces, of_master["boot"], {**environment, **address}, options.runtime_image)
        template = master_pod(shape, inner, account or job_id)
        await client.create(REPLICA_SETS, objects.masters_set(job_id, owner, template), strict=True)
        spec = initial_pods.spec(of_master, job, service["spec"]["clusterIP"])
        await initial_pods.make(client, job_id, submission.requests, pod_of(of_master, shape, spec))
        return None

    # -- afterwards --

    def find_jobs(self, prefix: str) -> dict[str, str]:
        """Return our jobs in the namespace that `prefix` means, the beginning of an id or an application: id -> application."""
        config = self.config()
        rows = self.call(config, objects.roots_in)
        applications = {
            row["metadata"]["name"]: f"{config.context}@{config.namespace}/{row['metadata']['name']}" for row in rows
        }
        return {
            job: application
            for job, application in applications.items()
            if job.startswith(prefix) or application == prefix
        }

    def application_state(self, application: str) -> tuple[str, str]:
        """Return the state of a job on the cluster, and what Kubernetes says of it.

        `running`: Kubernetes runs its master or will. `submitting`: it may not have been asked for the master yet. `removed`: the master
        will never start. Else `ended`, `failed` or `unknown`.
        """
        _, namespace, job_id = parts(application)

        async def look(client: Client) -> tuple[str, str]:
            root = await get_or_none(client, CONFIGMAPS, job_id)
            if root is None:
                return "unknown", f"there is no ConfigMap {job_id} in namespace {namespace}: somebody has deleted it"
            replica_set = await get_or_none(client, REPLICA_SETS, master_name(job_id))
            if replica_set is None and await get_or_none(client, SECRETS, job_id) is not None:
                if objects.is_beside_client(root):
                    return "running", ""
                is_late = datetime.now(UTC) - objects.created_at(root) > objects.SUBMITTED_WITHIN
                return ("removed" if is_late else "submitting"), NOTHING_RUNS
            if replica_set is None or "deletionTimestamp" in replica_set["metadata"]:
                deleted = await _deleted(client, job_id)
                return "ended", f"{deleted} was deleted from namespace {namespace}, and the job ended with it"
            runs = (replica_set.get("status") or {}).get("readyReplicas")
            why = None if runs else masters.hopeless(await masters.pods(client, job_id), datetime.now(UTC))
            if why is not None:
                return "failed", words(*why)
            return "running", ""

        return self.call(self.config(application=application), look)

    def failure_reason(self, application: str) -> tuple[str, dict[str, Any]]:
        """Return why Kubernetes starts no master of the job any more: the reason, and its figures."""
        job_id = parts(application)[2]
        pods = self.call(self.config(application=application), lambda client: masters.pods(client, job_id))
        return masters.hopeless(pods, datetime.now(UTC)) or ("master-failed", {"masters": 1, "detail": ""})

    def waiting_reason(self, application: str, job: Any) -> str:
        """Say what a job waits for whose master does not answer."""
        job_id = parts(application)[2]

        async def look(client: Client) -> str:
            pods = await masters.pods(client, job_id)
            return await masters.waiting_reason(
                client, await get_or_none(client, REPLICA_SETS, master_name(job_id)), pods
            )

        state, why = self.application_state(application)
        if state == "submitting":
            return masters.UNASKED
        if state != "running":
            return f"Kubernetes has it as {state}: {why}"
        return self.call(self.config(application=application), look)

    def end(self, application: str) -> None:
        """End all of the job but its history, and wait until its pods are gone."""
        job_id = parts(application)[2]

        async def remove(client: Client) -> None:
            # The Secret goes first: a job with a Secret and without a ReplicaSet counts as being submitted.
            await client.delete(SECRETS, job_id, propagation="Background")
            await client.delete(CONFIGMAPS, run_name(job_id), propagation="Background")
            await client.delete(REPLICA_SETS, master_name(job_id), propagation="Background")
            await client.delete_all(PODS, f"{LABEL}={label_value(job_id)}", grace=5)
            ended = {ENDED: datetime.now(UTC).strftime(STAMP)}
            with contextlib.suppress(NotFound):  # somebody has deleted the root, and with it the history
                await client.patch(CONFIGMAPS, job_id, {"metadata": {"annotations": ended}})
            remaining: Sequence[Any] = ()
            try:
                async with asyncio.timeout(ENDED_WITHIN):
                    while remaining := (await client.list(PODS, labels=f"{LABEL}={label_value(job_id)}"))[0]:  # noqa: ASYNC110  it has to be asked
                        await asyncio.sleep(0.1)
            except TimeoutError:
                names = ", ".join(pod["metadata"]["name"] for pod in remaining[:5])
                raise EngineFailed(
                    f"after {ENDED_WITHIN:.0f} s pods of {job_id} are not gone yet: {names}", anchor="kubernetes",
                    mend="Kubernetes removes them once their node answers, or is given up: kubectl get pods,nodes -o wide",
                ) from None  # fmt: skip

        self.call(self.config(application=application), remove)

    def forget(self, job_id: str, application: str) -> None:
        """Delete the job's ConfigMap, and with it all that it owns: its log, its Secret, its pods."""
        self.end(application)

        async def remove(client: Client) -> None:
            await client.delete(CONFIGMAPS, job_id, propagation="Background")

        self.call(self.config(application=application), remove)

    def master_payload(self, application: str) -> dict[str, Any] | None:
        """Return the payload of a master that takes up a job beside its client; None where there is nothing to take up."""
        job_id = parts(application)[2]
        kept = self.call(self.config(application=application), lambda client: get_or_none(client, SECRETS, job_id))
        if kept is None:
            return None
        payload: dict[str, Any] = json.loads(b64decode(kept["data"][MASTER_SECRET]))
        return {**payload, "owner": kept["metadata"]["uid"]}

    def reach(self, application: str, address: str, within: float) -> socket.socket:
        """Return a connection to the job's master, through the API server. Raises OSError without a master, BadInput without the right."""
        return self._reach(application, MASTER_PART, "", address)

    def reach_task(self, application: str, container: str, address: str, within: float) -> socket.socket:
        """Return a connection to a port of a task's pod, through the API server. Raises OSError without one, BadInput without the right."""
        return self._reach(application, TASK_PART, container, address)

    def _reach(self, application: str, part: str, pod: str, address: str) -> socket.socket:
        _, _, job_id = parts(application)
        blocking = _blocking(self.config(application=application))
        try:
            pods = blocking.list(PODS, labels=selector(job_id, part))[0]
            running = [
                other["metadata"]["name"]
                for other in pods
                if other["status"].get("phase") == "Running" and "deletionTimestamp" not in other["metadata"]
            ]
            names = [name for name in running if not pod or name == pod]
            if not names:
                raise ConnectionRefusedError(f"{pod or 'the pod of its master'} does not run")
            return blocking.connect(names[0], int(address.rpartition(":")[2]))
        except Forbidden as error:  # a pod is there: a user who may not ask it must not read that none answers
            raise failed(error, blocking.config) from error
        except KubeError as error:
            raise ConnectionError(str(error)) from error


async def _deleted(client: Client, job_id: str) -> str:
    """Name the object that was deleted of those by which a job runs: each owns the next."""
    owners = ((CONFIGMAPS, run_name(job_id)), (SECRETS, job_id))
    for kind, name in owners:
        if await get_or_none(client, kind, name) is None:
            return f"the {kind.name} {name}"
    return f"the {REPLICA_SETS.name} {master_name(job_id)}"


def without(job: Any) -> Collection[str]:
    """Return the packages that the job has no use for in its pods."""
    text = json.dumps(job_to(job)).lower()
    packages = set()
    if "hdfs://" not in text and "viewfs://" not in text:
        packages |= {"hdfs-native", "protobuf"}
    if not any(f"{scheme}://" in text for scheme in ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl")):
        packages.add("obstore")
    return packages


def _as_in_cluster(job: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return the job as the cluster reads it: no context of a kubeconfig means anything there."""
    if not str(job.get("storage") or "").startswith(SCHEME):
        return dict(job)
    return {**job, "storage": url_of("", namespace)}


def _environment(site: Mapping[str, Any]) -> dict[str, str]:
    return {"TRAINMASTER_PYTHON": f"{site['environment']}/bin/python3"} if site.get("environment") else {}


async def exists(client: Client) -> bool:
    """Return whether the client's namespace is there; False where the user may not see that. Raises BadInput where it is not there."""
    try:
        await client.get(NAMESPACES, client.namespace)
    except NotFound:
        raise BadInput(
            f"there is no namespace {client.namespace}", place=f"{PLACE}.namespace: {client.namespace}",
            mend="see them: kubectl get namespaces; name one with --set engines.kubernetes.namespace=NAME", anchor="namespace",
        ) from None  # fmt: skip
    except Forbidden:  # a user who may make pods in it need not be allowed to see it
        return False
    return True


_clients: dict[tuple[object, ...], Blocking] = {}


def _blocking(config: Config) -> Blocking:
    """Return one client for all connections of a process, whose loop serves forwarded bytes."""
    key = (os.getpid(), config.server, config.ca, config.source, config.context, config.namespace)
    if key not in _clients:
        _clients[key] = Blocking(config)
    return _clients[key]


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first
