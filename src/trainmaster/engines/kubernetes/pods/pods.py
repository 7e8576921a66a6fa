"""The pods of a job.

A pod is made of the request and the user's settings of pods; then the user's templates are merged in. Our container is called `program` in
every pod, the master's too, and `runtime` is the init container that brings its runtime; a `PodBootstrap` says what they run.

Without templates, pods pass the Pod Security Standard "restricted": no root, no privileges, no capabilities, a root file system that cannot
be written. Programs write to empty directories: the working directory, their home, /tmp, and a /dev/shm large enough for data loaders,
which Kubernetes counts as memory of the container.

A container asks for its share of processor cores and may use idle ones (not with `limit_cores`). It gets the memory that it asks for and no
more, so that a node never has to evict a pod for what another one takes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs

from trainmaster.core.containers import Request
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.dependencies import stages
from trainmaster.core.spec.job import MIB, Job, Nodes, Role
from trainmaster.core.spec.reading import nearest
from trainmaster.engines.kubernetes.names import (
    OUR_NAME,
    TASK,
    dns_label,
    hostname_of,
    labels_of,
    labels_of_gang,
    labels_of_master,
    name_of,
    subdomain_of,
)
from trainmaster.engines.kubernetes.pods import keys
from trainmaster.engines.kubernetes.pods.places import check_places
from trainmaster.engines.kubernetes.pods.templates import (
    PROGRAM,
    RUNTIME,
    Path,
    applied,
    check_conflicts,
    without_containers,
)
from trainmaster.engines.kubernetes.pods.volumes import OURS
from trainmaster.engines.kubernetes.settings import CLIENT, MASTER, NO_SHM, Pods, Settings
from trainmaster.engines.sections import wrong
from trainmaster.runtime.formats import sql

WORK, HOME = (
    f"{OURS}/work",
    f"{OURS}/user",
)  # the working directory where `PodBootstrap` names no other; the user's home
STOPPING = 15.0  # s beyond a program's own grace: the agent kills it, ships the end of its log and says how it ended
MASTER_STOPPING = 30.0  # s for an ending master to close its log
MASTER_TOLERATES = 5  # s on a node that is lost, before Kubernetes makes another one elsewhere
IMAGE = "TRAINMASTER_KUBERNETES_IMAGE"  # a variable: the image of jobs that name none
_NODE_NAME, _HOST_NAME = "metadata.name", "kubernetes.io/hostname"
_REQUIRED, _PREFERRED = (f"{stage}DuringSchedulingIgnoredDuringExecution" for stage in ("required", "preferred"))
# The fields of our init containers that templates leave as they are.
_OF_INIT = ("image", "command", "args", "env", "volumeMounts", "restartPolicy", "workingDir")
_USER = ("runAsUser", "runAsGroup", "runAsNonRoot")  # of a securityContext
_LAST_WORDS = {"terminationMessagePolicy": "FallbackToLogsOnError"}  # of a container that fails: its state has them
_OWN_KEYS = {"cpu": "cores", "memory": "memory"}  # resources that have a key of their own


@attrs.frozen(slots=True, eq=False)
class Shape:
    """The pods of a job have this in common. `image`: of roles for which the job names none; `owner`: the ownerReference that pods get."""

    job_id: str
    job: Job
    settings: Settings
    image: str = ""
    owner: Mapping[str, Any] | None = None


@attrs.frozen(slots=True, eq=False)
class PodBootstrap:
    """The programs of a pod: init containers first, then our container with its command, variables and mounts.

    Init containers get the user's image, resources and security where they name none. `$` in commands and values stands for itself.
    """

    init: list[dict[str, Any]] = attrs.field(factory=list)
    command: list[str] = attrs.field(factory=list)
    env: list[dict[str, Any]] = attrs.field(factory=list)
    volumes: list[dict[str, Any]] = attrs.field(factory=list)
    mounts: list[dict[str, Any]] = attrs.field(factory=list)
    cwd: str = WORK


# -- pods --


def image_of(job: Job, role: str, site: str = "") -> str:
    """Return the image of a role, or of the master. Raises BadInput where there is none."""
    own = job.roles[role].image if role in job.roles else ""
    image = own or job.environment.image or site
    if image:
        keys.image(image, f"roles.{role}.image" if own else "environment.image" if job.environment.image else IMAGE)
    else:
        raise BadInput(
            f"{'the master' if role == MASTER else role} has no image", place="environment.image",
            mend=f"name one with Python >= 3.11 by environment.image, or by the variable {IMAGE}", anchor="no-image",
        )  # fmt: skip
    return image


def task_pod(shape: Shape, request: Request, inside: PodBootstrap) -> dict[str, Any]:
    """Return the pod of a task's container. Raises BadInput where a template changes what is ours."""
    role, options = shape.job.roles[request.role], shape.settings.of(request.role)
    job_id, name = shape.job_id, name_of(shape.job_id, request.task, request.serial)
    spec = {
        "hostname": hostname_of(request.role, request.index), "subdomain": subdomain_of(job_id), "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(role.stop.grace + STOPPING),
        **_account(shape.settings.task_service_account),
        **_placement(options, request.nodes.get("labels") or {}),
    }  # fmt: skip
    if (priority := options.priority_class) is not None:
        high = request.index < math.ceil(priority.fraction * role.replicas.max)
        spec |= _priority_fields(priority.name if high else priority.other)
    resources = _resources(options, request.memory, request.cores, request.gpus, request.extended)
    pod: dict[str, Any] = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": _metadata(shape, options, labels_of(job_id, request.role, request.index, request.serial, shape.job.name)),
        "spec": spec,
    }  # fmt: skip
    pod["metadata"]["name"] = name
    pod["metadata"]["annotations"][TASK] = request.task
    if shape.owner:
        pod["metadata"]["ownerReferences"] = [dict(shape.owner)]
    _queue(shape, request, pod)
    image = image_of(shape.job, request.role, shape.image)
    pod = _fill(pod, options, inside, image, resources, request.program_memory, request.nodes.get("labels") or {})
    return _set_node_affinity(pod, request.nodes.get("exclude") or (), request.hosts)


def master_pod(shape: Shape, inside: PodBootstrap, service_account: str = "") -> dict[str, Any]:
    """Return the template of the master's pod: metadata and spec. Kubernetes restarts a master that ends badly, in its pod or another."""
    options, size, nodes = _without_sidecars(shape.settings), shape.job.master.resources, shape.job.master.nodes
    spec = {
        "restartPolicy": "Always", "terminationGracePeriodSeconds": math.ceil(MASTER_STOPPING),
        **_account(service_account or shape.settings.service_account),
        "automountServiceAccountToken": False,  # `PodBootstrap` mounts it into our container alone
        **_placement(options, nodes.labels),
    }  # fmt: skip
    lost = [{"key": f"node.kubernetes.io/{condition}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": MASTER_TOLERATES}
            for condition in ("not-ready", "unreachable")]  # fmt: skip
    spec["tolerations"] = [*spec.get("tolerations", ()), *lost]
    if options.priority_class is not None:
        spec |= _priority_fields(options.priority_class.name)
    resources = _resources(options, size.program_memory + size.overhead, size.cores, size.gpus, size.extended)
    meta = _metadata(shape, options, labels_of_master(shape.job_id, shape.job.name))
    image = image_of(shape.job, MASTER, shape.image)
    pod = _fill({"metadata": meta, "spec": spec}, options, inside, image, resources, size.program_memory, nodes.labels)
    return _set_node_affinity(pod, nodes.exclude, ())


def pod_groups(shape: Shape) -> list[dict[str, Any]]:
    """Return Volcano's PodGroups of the job's gangs; none where the job names no queue of Volcano."""
    if not shape.settings.volcano or shape.job.gang is False:
        return []
    return [
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {
                "name": _gang_name(shape, gang), "labels": labels_of_gang(shape.job_id, shape.job.name),
                **({"ownerReferences": [dict(shape.owner)]} if shape.owner else {}),
            },
            "spec": {"minMember": least, "queue": shape.settings.volcano},
        }
        for gang, least in _gangs(shape.job).items()
    ]  # fmt: skip


def check(job: Job, settings: Settings) -> None:
    """Raise BadInput for a job that no cluster can take: unknown roles, and wrong templates, names and amounts."""
    for role in settings.roles:
        if role not in job.roles and role != MASTER:
            raise wrong(f"{keys.PLACE}.roles.{role}", "the job has no such role", nearest(role, [*job.roles, MASTER]))
    keys.named(job.annotations, "annotations")
    if urlsplit(job.storage).scheme.lower() in ("file", "local"):
        raise BadInput(
            f"{job.storage} is a path, and the pods and this machine have different files there: nobody else would see how the job ends",
            place=f"storage: {job.storage}", anchor="not-on-the-cluster",
            mend="name a URL that the pods and this machine reach (s3://, hdfs://); or leave storage out: the cluster keeps the event log",
        )  # fmt: skip
    _check_environment(job)
    _check_tables(job, settings)
    shape = Shape("job", job, settings, "of-the-site")
    inside = PodBootstrap(init=[{"name": RUNTIME}], command=["true"])
    pods = {}
    for name, role_spec in job.roles.items():
        _check_role(f"roles.{name}", role_spec, settings.of(name))
        pods[name] = task_pod(shape, request_of(name, role_spec), inside)
        _check_images(pods[name], settings.of(name))
    _check_nodes("master.nodes", job.master.nodes)
    of_master = master_pod(shape, inside)
    _check_images(of_master, settings.of(MASTER))
    check_places(job, pods, None if settings.run_master == CLIENT else of_master)


def _check_environment(job: Job) -> None:
    """Raise BadInput for packages that would come with a Python: that alone is more than the Secrets of a job hold (`submit.shipping`)."""
    environment = job.environment
    if environment.requirements and not (environment.path or environment.archive):
        image = environment.image or "registry.example.org/team/NAME:TAG"
        raise BadInput(
            "a Python with packages is too large for the Secrets by which files travel to pods",
            place=f"environment.requirements: {environment.requirements}", anchor="files-too-large",
            mend=f"put the packages into an image, tm image build {image} -r {environment.requirements}, push it, and name it by "
            "environment.image; or name an environment on a volume by environment.path",
        )  # fmt: skip


def _check_tables(job: Job, settings: Settings) -> None:
    """Raise BadInput for a table in a file of this machine that no volume brings into pods. One that is not here may be in an image."""
    for name, source in job.inputs.items():
        path = sql.file_of(source.location)
        readers = [MASTER, *(source.to or [role for role, spec in job.roles.items() if spec.counts])]
        if path and os.path.exists(path) and not all(_is_mounted(path, settings.of(role)) for role in readers):
            raise BadInput(
                f"the table's file {path} is of this machine, and the pods do not see it", place=f"inputs.{name}.url: {source.location}",
                mend="put the table into a PostgreSQL that they reach, or the file on a volume of all pods: engines.kubernetes.volumes",
                anchor="not-on-the-cluster",
            )  # fmt: skip


def _is_mounted(path: str, pods: Pods) -> bool:
    return any(f"{path}/".startswith(f"{volume.path.rstrip('/')}/") for volume in pods.volumes)


def request_of(name: str, role: Role, index: int = 0, serial: int = 1) -> Request:
    """Return the request for a task of a role, before anything is known of its data or of earlier attempts."""
    size = role.resources
    return Request(
        f"{name}:{index}", serial, name, index, size.program_memory + size.overhead, size.cores, size.gpus, role.priority,
        nodes={"labels": role.nodes.labels, "exclude": list(role.nodes.exclude)}, program_memory=size.program_memory,
        extended=size.extended,
    )  # fmt: skip


def escaped(text: str) -> str:
    """Escape `text`: in commands, arguments and variables Kubernetes expands `$(NAME)`, and makes `$$` one `$`."""
    return text.replace("$", "$$")


# -- parts of a pod --


def _metadata(shape: Shape, options: Pods, ours: Mapping[str, str]) -> dict[str, Any]:
    annotations = {**shape.job.annotations, **options.annotations}
    return {"labels": {**options.labels, **ours}, "annotations": annotations}


def _account(name: str) -> dict[str, Any]:
    """Programs get the cluster's token only where the user names an account for them; variables of other Services never."""
    named = {"serviceAccountName": name} if name else {}
    return {**named, "automountServiceAccountToken": bool(name), "enableServiceLinks": False}


def _without_sidecars(settings: Settings) -> Pods:
    """Return the settings of the master's pod. A template of all pods adds no container to it; one of `roles.master` may.

    A container in the pod of the master is close to the account that makes and deletes pods.
    """
    pods = settings.of(MASTER)
    templates = (without_containers(template) if template in settings.pods.pod else template for template in pods.pod)
    return attrs.evolve(pods, pod=tuple(templates))


def _priority_fields(name: str) -> dict[str, str]:
    return {"priorityClassName": name} if name else {}


def _placement(options: Pods, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return where a pod may be, by the settings and the labels that its role wants of nodes."""
    fields: dict[str, Any] = {}
    if chosen := {**options.node_selector, **labels}:
        fields["nodeSelector"] = chosen
    if options.tolerations:
        fields["tolerations"] = [dict(toleration) for toleration in options.tolerations]
    if options.affinity:
        fields["affinity"] = dict(options.affinity)
    return fields


def _set_node_affinity(pod: dict[str, Any], excluded: Iterable[str], preferred: Sequence[str]) -> dict[str, Any]:
    """Keep the pod off the nodes `excluded`, whatever its affinity, and near its data, on `preferred`, if it can be; return it."""
    spec = pod["spec"]
    affinity = dict(spec.get("affinity") or {})
    nodes = dict(affinity.get("nodeAffinity") or {})
    # A requirement of a field takes one value (validation of NodeSelectorRequirement).
    if fields := [{"key": _NODE_NAME, "operator": "NotIn", "values": [node]} for node in excluded]:
        # One of the terms must hold, so each gets the exclusions.
        terms = (nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
        nodes[_REQUIRED] = {
            "nodeSelectorTerms": [{**term, "matchFields": [*term.get("matchFields", ()), *fields]} for term in terms]
        }
    if preferred:
        near = {"matchExpressions": [{"key": _HOST_NAME, "operator": "In", "values": list(preferred)}]}
        nodes[_PREFERRED] = [*nodes.get(_PREFERRED, ()), {"weight": 50, "preference": near}]
    if nodes:
        spec["affinity"] = {**affinity, "nodeAffinity": nodes}
    return pod


def _resources(
    options: Pods, memory: int, cores: float, gpus: int, extended: Mapping[str, int]
) -> dict[str, dict[str, str]]:
    """Return the resources of our container. Those that are counted whole, accelerators and the like, must be limits too."""
    milli = max(1, math.ceil(round(cores * 1000, 3)))
    cpu = f"{milli}m" if milli % 1000 else str(milli // 1000)
    counted = {name: str(count) for name, count in {options.accelerator: gpus, **extended}.items() if count}
    requests, most = {"cpu": cpu, "memory": str(memory)}, {"cpu": cpu} if options.limit_cores else {}
    return {"requests": {**requests, **counted}, "limits": {**most, "memory": str(memory), **counted}}


def _queue(shape: Shape, request: Request, pod: dict[str, Any]) -> None:
    """Give the pod to the queue that the user names. A pod that its gang cannot begin without is queued with the gang, others alone."""
    meta, spec = pod["metadata"], pod["spec"]
    with_gang = request.gang and (not request.least or request.index < request.least)
    if shape.settings.queue:
        # https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
        meta["labels"]["kueue.x-k8s.io/queue-name"] = shape.settings.queue
        if with_gang:
            meta["labels"]["kueue.x-k8s.io/pod-group-name"] = _gang_name(shape, request.gang)
            meta["annotations"]["kueue.x-k8s.io/pod-group-total-count"] = str(_gangs(shape.job)[request.gang])
    elif shape.settings.volcano:
        # https://volcano.sh/en/docs/podgroup/
        spec["schedulerName"] = "volcano"
        meta["annotations"]["scheduling.volcano.sh/queue-name"] = shape.settings.volcano
        if with_gang:
            meta["annotations"]["scheduling.k8s.io/group-name"] = _gang_name(shape, request.gang)


def _gang_name(shape: Shape, gang: str) -> str:
    return dns_label(f"{shape.job_id}-{gang}")


def _gangs(job: Job) -> dict[str, int]:
    """Return gang, as requests name it -> how many members it cannot begin without."""
    members: dict[str, int] = {}
    for role, stage in stages(job.roles).items():
        members[f"group-{stage}"] = members.get(f"group-{stage}", 0) + job.roles[role].replicas.least
    return members


def _fill(
    pod: dict[str, Any], options: Pods, inside: PodBootstrap, image: str, resources: Mapping[str, Any], memory: int,
    labels: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    """Return the pod with its containers and volumes, and the user's templates merged in. `memory`: the program's own, bytes;
    `labels`: that its role wants of nodes.
    """
    volumes, mounts, user_mounts = _storage(options, inside, memory)
    spec = pod["spec"]
    pull = {"imagePullPolicy": options.pull} if options.pull else {}
    program = {
        "name": PROGRAM, "image": image, **pull, "command": [escaped(word) for word in inside.command], "workingDir": inside.cwd,
        "env": [*_variables(), *(_escape_variable(variable) for variable in inside.env)], "resources": resources,
        "volumeMounts": [*mounts, *user_mounts, *inside.mounts], **_LAST_WORDS,
    }  # fmt: skip
    spec["containers"] = [program]
    if inside.init:
        small = {kind: {name: of[name] for name in _OWN_KEYS if name in of} for kind, of in resources.items()}
        # The job's Python, which brings our runtime, may be on a volume of the user's. An image of the runtime has all that it needs.
        spec["initContainers"] = [
            _init(
                {**container, "volumeMounts": [*([] if "image" in container else user_mounts), *container.get("volumeMounts", ())]},
                {"image": image, **pull, "resources": small, **_LAST_WORDS},
            )
            for container in inside.init
        ]  # fmt: skip
    spec["volumes"] = [*volumes, *inside.volumes]
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    spec["securityContext"] = _security(options)
    ours = _fixed_paths(inside) | {
        ("spec", "nodeSelector", label): "say it by nodes.labels of the role" for label in labels
    }
    for template in options.pod:
        check_conflicts(template, pod, ours)
        pod = applied(pod, template)
    _secure(pod["spec"], {container["name"] for container in inside.init})
    return pod


def _secure(spec: Mapping[str, Any], ours: Collection[str]) -> None:
    """Confine all containers, and give the init containers `ours` the user of the program's: nobody else may read what they write."""
    (program,) = (container for container in spec["containers"] if container["name"] == PROGRAM)
    user = {name: value for name, value in (program.get("securityContext") or {}).items() if name in _USER}
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        security = {**_confined(), **(container.get("securityContext") or {})}
        if container["name"] in ours:
            security = {name: value for name, value in security.items() if name not in _USER} | user
        container["securityContext"] = security


def _init(container: Mapping[str, Any], default: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**default, **container}
    for name in ("command", "args"):
        if name in merged:
            merged[name] = [escaped(part) for part in merged[name]]
    if "env" in merged:
        merged["env"] = [_escape_variable(part) for part in merged["env"]]
    return merged


def _escape_variable(variable: Mapping[str, Any]) -> dict[str, Any]:
    return {**variable, "value": escaped(variable["value"])} if "value" in variable else dict(variable)


def _confined() -> dict[str, Any]:
    """Return what "restricted" wants of containers, and a root file system that is as the image has it."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}


def _security(options: Pods) -> dict[str, Any]:
    run_as = options.run_as
    ids = {"runAsUser": run_as.user, "runAsGroup": run_as.group, "fsGroup": run_as.fs_group}
    fields: dict[str, Any] = {name: value for name, value in ids.items() if value is not None}
    if run_as.fs_group is not None:
        fields["fsGroupChangePolicy"] = "OnRootMismatch"  # else a large claim is walked through before each start
    return {"runAsNonRoot": run_as.user != 0, **fields, "seccompProfile": {"type": "RuntimeDefault"}}


def _variables() -> list[dict[str, str]]:
    """A user without an entry in /etc/passwd has a home and a name by these alone (getpass and Python's `~` take them first)."""
    return [
        {"name": "HOME", "value": HOME},
        {"name": "USER", "value": OUR_NAME},
        {"name": "LOGNAME", "value": OUR_NAME},
    ]


def _storage(
    options: Pods, inside: PodBootstrap, memory: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return our volumes and the user's, the mounts of ours, and those of the user's. Where one has the path of ours, ours is left out."""
    shm = options.shm if options.shm is not None else max(64 * MIB, memory // 2)
    places: dict[str, tuple[str, dict[str, Any]]] = {HOME: ("user", {}), "/tmp": ("tmp", {})}
    if inside.cwd == WORK:
        places[WORK] = ("work", {})
    if shm != NO_SHM:
        places["/dev/shm"] = ("shm", {"medium": "Memory", "sizeLimit": str(shm)})
    user_paths = {volume.path for volume in options.volumes}
    kept = {path: place for path, place in places.items() if path not in user_paths}
    named = [(volume.name or f"volume-{at}", volume) for at, volume in enumerate(options.volumes)]
    volumes = [{"name": name, "emptyDir": source} for name, source in kept.values()]
    mounts: list[dict[str, Any]] = [{"name": name, "mountPath": path} for path, (name, _) in kept.items()]
    volumes += [volume.volume(name) for name, volume in named]
    return volumes, mounts, [volume.mount(name) for name, volume in named]


def _fixed_paths(inside: PodBootstrap) -> dict[Path, str]:
    """Return the paths of this pod that no template may change, beside those that are fixed in all."""
    program = ("spec", "containers", PROGRAM)
    fixed: dict[Path, str] = {}
    for volume in ("work", *(entry["name"] for entry in inside.volumes)):
        fixed["spec", "volumes", volume] = "choose another name"
    for path in (WORK, *(mount["mountPath"] for mount in inside.mounts)):
        fixed[*program, "volumeMounts", path] = "choose another path"
    for variable in inside.env:
        fixed[*program, "env", variable["name"]] = "leave it out; variables of programs are said by env: of the role"
    for init in inside.init:
        for part in _OF_INIT:
            fixed["spec", "initContainers", str(init["name"]), part] = (
                "leave it out: it brings the runtime into the pod"
            )
    return fixed


# -- checks --


def _check_role(place: str, role: Role, options: Pods) -> None:
    _check_nodes(f"{place}.nodes", role.nodes)
    for name in role.resources.extended:
        key = f"{place}.resources.extended.{name}"
        own = {**_OWN_KEYS, options.accelerator: "gpus"}.get(name)
        if own:
            raise BadInput(
                f"{name} has a key of its own", place=key, mend=f"write resources: {{{own}: ..}}", anchor="larger-than-the-cluster"
            )  # fmt: skip
        keys.label_name(name, key)


def _check_nodes(place: str, nodes: Nodes) -> None:
    keys.labels(nodes.labels, f"{place}.labels")
    for at, node in enumerate(nodes.exclude):
        keys.object_name(node, f"{place}.exclude[{at}]")


def _check_images(pod: Mapping[str, Any], options: Pods) -> None:
    """Raise BadInput for a container of a template without an image, or with one whose name no kubelet takes: the API server takes any."""
    place = options.pod[-1].place if options.pod else keys.PLACE
    for kind in ("initContainers", "containers"):
        for container in pod["spec"].get(kind, ()):
            at = f"{place}.spec.{kind}[{container['name']}]"
            if not container.get("image"):
                raise wrong(at, "it has no image", f"name one; our own container is called {PROGRAM}")
            keys.image(container["image"], f"{at}.image")
