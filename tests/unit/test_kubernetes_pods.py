"""The pods made of a job: names, what follows from the request and the settings, templates and their conflicts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.kubernetes import names
from trainmaster.engines.kubernetes.pods.keys import is_label_value
from trainmaster.engines.kubernetes.pods.pods import (
    HOME,
    WORK,
    PodBootstrap,
    Shape,
    check,
    escaped,
    image_of,
    master_pod,
    pod_groups,
    request_of,
    task_pod,
)
from trainmaster.engines.kubernetes.pods.templates import applied, template
from trainmaster.engines.kubernetes.settings import settings
from trainmaster.engines.kubernetes.submit.refusals import try_pod
from trainmaster.kube.errors import of_status

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
GIB = 2**30
INSIDE = PodBootstrap(
    init=[{"name": "runtime", "command": ["sh", "-c", "echo $(A)"]}], command=["sh", "start", "$(A) $$ $B"],
    env=[{"name": "A", "value": "$(B)"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    volumes=[{"name": "ours", "emptyDir": {}}], mounts=[{"name": "ours", "mountPath": "/trainmaster/home"}],
)  # fmt: skip


def job(said: dict[str, Any] | None = None, role: dict[str, Any] | None = None, **more: Any) -> Job:
    roles = {"worker": {"command": "true", "replicas": 4, "resources": {"memory": "2GiB"}, **(role or {})}}
    data = {
        "name": "digits",
        "environment": {"image": "image:1"},
        "roles": roles,
        "engines": {"kubernetes": said or {}},
    }
    return job_from({**data, **more})


def shape(said: dict[str, Any] | None = None, role: dict[str, Any] | None = None, **more: Any) -> Shape:
    made = job(said, role, **more)
    return Shape("digits-abc123", made, settings(made.engines["kubernetes"]), owner={"kind": "Secret", "uid": "u"})


def pod_of(
    said: dict[str, Any] | None = None, role: dict[str, Any] | None = None, index: int = 0, **of: Any
) -> dict[str, Any]:
    made = shape(said, role)
    return task_pod(made, attrs.evolve(request_of("worker", made.job.roles["worker"], index), **of), INSIDE)


def program(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = [one for one in pod["spec"]["containers"] if one["name"] == "program"]
    return found


# -- names --


@given(
    st.text("abzAZ019-_.", min_size=1, max_size=80),
    st.text("azAZ09-_.", min_size=1, max_size=63),
    st.integers(0, 10**5),
    st.integers(1, 10**4),
)
def test_names_are_labels_whatever_they_are_made_of(job_id: str, role: str, index: int, serial: int) -> None:
    assert LABEL.fullmatch(names.name_of(job_id, f"{role}:{index}", serial))
    assert LABEL.fullmatch(names.hostname_of(role, index))
    assert LABEL.fullmatch(names.subdomain_of(job_id))
    assert names.subdomain_of(job_id)[0].isalpha()
    assert all(is_label_value(one) for one in names.labels_of(job_id, role, index, serial, "a name.").values())


@given(
    st.lists(st.tuples(st.text("aA-_.", min_size=1, max_size=60), st.integers(0, 99), st.integers(1, 99)), unique=True)
)
def test_names_are_unique_in_a_job(tasks: list[tuple[str, int, int]]) -> None:
    assert len({names.name_of("j", f"{role}:{index}", serial) for role, index, serial in tasks}) == len(tasks)
    hosts = {(role, index) for role, index, _ in tasks}
    assert len({names.hostname_of(role, index) for role, index in hosts}) == len(hosts)


def test_names_are_as_people_expect_them() -> None:
    assert names.name_of("digits-abc123", "worker:7", 2) == "digits-abc123-worker-7-2"
    assert names.hostname_of("worker", 7) == "worker-7"
    assert names.subdomain_of("digits-abc123") == "digits-abc123"
    assert names.subdomain_of("3d-net-abc123").startswith("j-3d-net-abc123")
    assert re.fullmatch(r"digits-abc123-my-role-0-1-[0-9a-f]{8}", names.name_of("digits-abc123", "My_Role:0", 1))
    assert names.selector("digits-abc123") == "trainmaster/job=digits-abc123,trainmaster/part=task"


def test_a_task_is_found_again_in_its_pod() -> None:
    made = shape({}, None, roles={"Odd_Role.": {"command": "true"}})
    pod = task_pod(made, request_of("Odd_Role.", made.job.roles["Odd_Role."], 0, 3), INSIDE)
    assert names.task_of(pod) == ("Odd_Role.:0", 3)
    assert names.task_of(master_pod(made, INSIDE)) is None
    assert names.task_of({"metadata": {"name": "other"}}) is None


# -- what follows from the request --


def test_the_pod_of_a_task() -> None:
    pod = pod_of()
    assert pod["metadata"] == {
        "name": "digits-abc123-worker-0-1",
        "labels": {
            "app.kubernetes.io/name": "trainmaster", "app.kubernetes.io/instance": "digits-abc123",
            "app.kubernetes.io/component": "worker", "app.kubernetes.io/part-of": "digits",
            "app.kubernetes.io/managed-by": "trainmaster", "trainmaster/job": "digits-abc123", "trainmaster/part": "task",
            "trainmaster/role": "worker", "trainmaster/index": "0", "trainmaster/serial": "1",
        },
        "annotations": {"trainmaster/task": "worker:0"},
        "ownerReferences": [{"kind": "Secret", "uid": "u"}],
    }  # fmt: skip
    spec = pod["spec"]
    assert (spec["hostname"], spec["subdomain"], spec["restartPolicy"]) == ("worker-0", "digits-abc123", "Never")
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert "serviceAccountName" not in spec
    assert spec["terminationGracePeriodSeconds"] == 25, "the program's 10 s and the agent's 15"
    ours = program(pod)
    assert (ours["image"], ours["workingDir"]) == ("image:1", WORK)
    assert "imagePullPolicy" not in ours, "Kubernetes decides by the image's tag"
    assert {one["mountPath"] for one in ours["volumeMounts"]} == {HOME, WORK, "/tmp", "/dev/shm", "/trainmaster/home"}


def test_stopping_takes_the_program_its_grace() -> None:
    assert pod_of(role={"stop": {"grace": "90s"}})["spec"]["terminationGracePeriodSeconds"] == 105


def test_resources_of_a_container() -> None:
    role = {"resources": {"cores": 1.5, "memory": "2GiB", "overhead": "64MiB", "gpus": 2, "extended": {"rdma/hca": 1}}}
    pod = pod_of(role=role)
    memory = str(2 * GIB + 64 * 2**20)
    counted = {"nvidia.com/gpu": "2", "rdma/hca": "1"}
    assert program(pod)["resources"] == {
        "requests": {"cpu": "1500m", "memory": memory, **counted},
        "limits": {"memory": memory, **counted},
    }
    (init,) = pod["spec"]["initContainers"]
    assert init["resources"] == {"requests": {"cpu": "1500m", "memory": memory}, "limits": {"memory": memory}}, (
        "no more than the program's, so that the pod needs no more; and no accelerator"
    )
    assert program(pod_of({"limit_cores": True}, role))["resources"]["limits"]["cpu"] == "1500m"
    assert program(pod_of({"accelerator": "amd.com/gpu"}, role))["resources"]["limits"]["amd.com/gpu"] == "2"
    assert program(pod_of(memory=5 * GIB, cores=0.0001))["resources"]["requests"] == {
        "cpu": "1m",
        "memory": str(5 * GIB),
    }


def test_shared_memory_is_half_of_the_programs() -> None:
    def size(pod: dict[str, Any]) -> list[dict[str, Any]]:
        return [one["emptyDir"] for one in pod["spec"]["volumes"] if one["name"] == "shm"]

    assert size(pod_of()) == [{"medium": "Memory", "sizeLimit": str(GIB)}]
    assert size(pod_of(program_memory=8 * GIB)) == [{"medium": "Memory", "sizeLimit": str(4 * GIB)}], (
        "more after retry_memory"
    )
    assert size(pod_of({"shm": "3GiB"})) == [{"medium": "Memory", "sizeLimit": str(3 * GIB)}]
    assert size(pod_of({"shm": "none"})) == []


def test_nobody_is_root_and_nothing_privileged() -> None:
    pod = pod_of()
    assert pod["spec"]["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    for one in (*pod["spec"]["containers"], *pod["spec"]["initContainers"]):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True,
        }  # fmt: skip
    assert pod_of({"run_as": {"user": 0}})["spec"]["securityContext"]["runAsNonRoot"] is False
    assert "runAsUser" not in pod_of({"run_as": "image"})["spec"]["securityContext"]


def test_our_init_containers_have_the_user_that_a_template_gives_the_programs_container() -> None:
    """They hand the secrets over, which nobody but that user may read."""
    user = {"runAsUser": 2345, "runAsGroup": 2346}
    other = {"runAsUser": 9, "allowPrivilegeEscalation": True}
    template = {"containers": [{"name": "program", "securityContext": user}],
                "initContainers": [{"name": "runtime", "securityContext": other}, {"name": "first", "securityContext": other}]}  # fmt: skip
    spec = pod_of({"pod": {"spec": template}})["spec"]
    first, runtime = sorted(spec["initContainers"], key=lambda container: container["name"])
    assert user.items() <= runtime["securityContext"].items()
    assert runtime["securityContext"]["allowPrivilegeEscalation"] is True
    assert first["securityContext"]["runAsUser"] == 9
    [runtime] = pod_of({"pod": {"spec": {"initContainers": template["initContainers"][:1]}}})["spec"]["initContainers"]
    assert "runAsUser" not in runtime["securityContext"], "as the program's, it has the pod's"


def expanded(text: str, known: dict[str, str]) -> str:
    """As the kubelet does it (third_party/forked/golang/expansion)."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)", lambda at: "$" if at.group() == "$$" else known.get(at.group(1), at.group()), text
    )


@given(st.text("$()AB x", max_size=12))
def test_what_is_given_to_a_container_stands_for_itself(text: str) -> None:
    assert expanded(escaped(text), {"A": "wrong", "": "wrong"}) == text


def test_commands_and_variables_are_escaped_and_references_are_not_touched() -> None:
    pod = pod_of()
    ours, (init,) = program(pod), pod["spec"]["initContainers"]
    assert ours["command"] == ["sh", "start", "$$(A) $$$$ $$B"]
    assert init["command"] == ["sh", "-c", "echo $$(A)"]
    env = {one["name"]: one for one in ours["env"]}
    assert env["A"]["value"] == "$$(B)"
    assert env["N"] == {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    assert (env["HOME"]["value"], env["USER"]["value"]) == (HOME, "trainmaster")


def test_where_pods_may_be() -> None:
    role = {"nodes": {"labels": {"pool": "gpu"}, "exclude": ["n1", "n2"]}}
    terms = [
        {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "b", "operator": "Exists"}]},
    ]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    said = {
        "node_selector": {"pool": "cpu", "zone": "z"},
        "affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}},
    }
    spec = pod_of(said, role, hosts=("h1",))["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "zone": "z"}, "the role's labels go before the engine's"
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [one]} for one in ("n1", "n2")]
    nodes = spec["affinity"]["nodeAffinity"]
    assert nodes[required]["nodeSelectorTerms"] == [{**one, "matchFields": fields} for one in terms], (
        "one of them must hold"
    )
    (wish,) = nodes["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["preference"]["matchExpressions"][0]["values"] == ["h1"]
    replaced = pod_of({"pod": {"spec": {"affinity": {"$patch": "replace"}}}}, role)["spec"]["affinity"]["nodeAffinity"]
    assert replaced[required]["nodeSelectorTerms"] == [{"matchFields": fields}], "whatever a template says of affinity"


def test_a_part_of_a_role_has_a_class_of_its_own() -> None:
    said = {"priority_class": {"worker": {"class": "high", "fraction": 0.5, "other": "low"}}}
    assert [pod_of(said, index=index)["spec"]["priorityClassName"] for index in range(4)] == [
        "high",
        "high",
        "low",
        "low",
    ]
    assert [
        pod_of({"priority_class": {"class": "a", "fraction": 0.25}}, index=index)["spec"].get("priorityClassName")
        for index in range(2)
    ] == ["a", None]
    assert pod_of({"priority_class": "all"}, index=3)["spec"]["priorityClassName"] == "all"


def test_volumes_and_where_a_user_takes_a_place_of_ours() -> None:
    said = {
        "volumes": [
            {"claim": "c", "path": "/data", "read_only": True},
            {"empty": "9GiB", "path": "/tmp", "name": "big"},
        ]
    }
    pod = pod_of(said)
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert volumes["volume-0"] == {"name": "volume-0", "persistentVolumeClaim": {"claimName": "c"}}
    assert volumes["big"]["emptyDir"] == {"sizeLimit": str(9 * GIB)}
    assert "tmp" not in volumes
    mounts = {one["mountPath"]: one["name"] for one in program(pod)["volumeMounts"]}
    assert (mounts["/data"], mounts["/tmp"]) == ("volume-0", "big")
    [runtime] = pod["spec"]["initContainers"]
    assert "/data" in {one["mountPath"] for one in runtime["volumeMounts"]}, "the job's Python may be there"
    with_image = attrs.evolve(INSIDE, init=[{"name": "runtime", "image": "ours:1", "volumeMounts": []}])
    made = shape(said, None)
    [runtime] = task_pod(made, request_of("worker", made.job.roles["worker"], 0), with_image)["spec"]["initContainers"]
    assert runtime["volumeMounts"] == [], "a volume at /opt would hide what is in that image"


def test_accounts_pull_secrets_labels_and_annotations() -> None:
    said = {
        "task_service_account": "reader", "pull": "never", "pull_secrets": ["a"], "labels": {"team": "x"},
        "annotations": {"example.org/a": "b"},
    }  # fmt: skip
    pod = pod_of(said)
    assert (pod["spec"]["serviceAccountName"], pod["spec"]["automountServiceAccountToken"]) == ("reader", True)
    assert pod["spec"]["imagePullSecrets"] == [{"name": "a"}]
    assert program(pod)["imagePullPolicy"] == pod["spec"]["initContainers"][0]["imagePullPolicy"] == "Never"
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["annotations"]["example.org/a"] == "b"


def test_images() -> None:
    own = {"worker": {"command": "true", "image": "own:1"}, "ps": {"command": "true"}}
    made = job(roles=own)
    assert (image_of(made, "worker"), image_of(made, "ps"), image_of(made, "master")) == ("own:1", "image:1", "image:1")
    bare = job(roles=own, environment={})
    assert image_of(bare, "ps", "site:1") == "site:1"
    with pytest.raises(BadInput) as told:
        image_of(bare, "ps")
    assert (told.value.place, told.value.anchor) == ("environment.image", "no-image")


GOOD = [
    "python",
    "python:3.12-slim",
    "localhost/host:1",
    "reg.example.org:5000/team/a_b/c--d:v1",
    f"a/b@sha256:{'0' * 64}",
    "[::1]:5000/x",
]
BAD = [
    "team/Torch:1",
    "a b",
    "https://reg/x",
    "x:",
    "x:a/b:c",
    "-x",
    "a//b",
    "a/b@sha256:12",
    "x:$TAG",
    f"{'x' * 256}:1",
]


@pytest.mark.parametrize("image", GOOD)
def test_an_image_that_kubelets_know_is_taken(image: str) -> None:
    assert image_of(job(environment={"image": image}), "worker") == image


@pytest.mark.parametrize("image", BAD)
def test_an_image_with_a_bad_name_is_refused_by_the_key_that_has_it(image: str) -> None:
    own = {"worker": {"command": "true", "image": image}}
    for wrong, place in (
        (job(environment={"image": image}), "environment.image"), (job(environment={}), "TRAINMASTER_KUBERNETES_IMAGE"),
        (job(roles=own), "roles.worker.image"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match="is not the name of an image") as refusal:
            image_of(wrong, "worker", image)
        assert refusal.value.place == place


@pytest.mark.parametrize("storage", ["file:///store", "FILE:///store"])
def test_a_storage_that_is_a_path_of_the_pods_is_refused_by_its_key(storage: str) -> None:
    stored = shape(storage=storage)
    with pytest.raises(BadInput) as refusal:
        check(stored.job, stored.settings)
    assert (refusal.value.place, refusal.value.anchor) == (f"storage: {storage}", "not-on-the-cluster")
    elsewhere = shape(storage="s3://bucket/jobs")
    check(elsewhere.job, elsewhere.settings)


def test_the_masters_pod() -> None:
    made = shape(
        {"service_account": "trainer", "tolerations": [{"operator": "Exists"}], "roles": {"master": {"labels": {"of": "master"}}}},
        master={"resources": {"memory": "512MiB", "overhead": "0B"}, "nodes": {"labels": {"pool": "cpu"}}},
    )  # fmt: skip
    pod = master_pod(made, INSIDE)
    assert "name" not in pod["metadata"], "its ReplicaSet gives it one"
    assert pod["metadata"]["labels"]["trainmaster/part"] == "master"
    assert pod["metadata"]["labels"]["of"] == "master"
    spec = pod["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("trainer", False)
    assert spec["nodeSelector"] == {"pool": "cpu"}
    assert spec["restartPolicy"] == "Always"
    assert [one.get("tolerationSeconds") for one in spec["tolerations"]] == [None, 5, 5]
    assert program(pod)["resources"]["limits"] == {"memory": str(512 * 2**20)}
    assert master_pod(made, INSIDE, "made")["spec"]["serviceAccountName"] == "made"


# -- queues --


def test_a_sidecar_of_all_pods_is_not_in_the_masters() -> None:
    """Else it is beside the account by which pods are made and deleted."""
    side = {"name": "side", "image": "side:1"}
    patch = {"name": "program", "env": [{"name": "X", "value": "y"}]}
    template: dict[str, Any] = {"spec": {"containers": [side, patch], "initContainers": [side], "hostNetwork": True}}
    spec = master_pod(shape({"pod": template}), INSIDE)["spec"]
    assert [one["name"] for one in (*spec["initContainers"], *spec["containers"])] == ["runtime", "program"]
    assert {"name": "X", "value": "y"} in spec["containers"][0]["env"]
    assert spec["hostNetwork"]
    assert [one["name"] for one in pod_of({"pod": template})["spec"]["containers"]] == ["program", "side"]
    asked = master_pod(shape({"roles": {"master": {"pod": {"spec": {"containers": [side]}}}}}), INSIDE)["spec"]
    assert [one["name"] for one in asked["containers"]] == ["program", "side"]


def test_a_queue_of_kueue() -> None:
    made = shape({"queue": "lq"}, {"replicas": {"min": 2, "max": 4}})
    request = attrs.evolve(request_of("worker", made.job.roles["worker"]), gang="group-0", least=2)
    meta = [
        task_pod(made, attrs.evolve(request, index=index, task=f"worker:{index}"), INSIDE)["metadata"]
        for index in range(4)
    ]
    assert [one["labels"]["kueue.x-k8s.io/queue-name"] for one in meta] == ["lq"] * 4
    assert [one["labels"].get("kueue.x-k8s.io/pod-group-name") for one in meta] == ["digits-abc123-group-0"] * 2 + [
        None
    ] * 2
    assert [one["annotations"].get("kueue.x-k8s.io/pod-group-total-count") for one in meta] == ["2"] * 2 + [None] * 2
    assert pod_groups(made) == []
    assert "kueue.x-k8s.io/queue-name" not in master_pod(made, INSIDE)["metadata"]["labels"], "it asks for the others"


def test_a_queue_of_volcano() -> None:
    made = shape(
        {"volcano": "q"},
        gang=True,
        roles={"worker": {"command": "true", "replicas": 3}, "ps": {"command": "true", "replicas": 2}},
    )
    request = attrs.evolve(request_of("worker", made.job.roles["worker"]), gang="group-0")
    pod = task_pod(made, request, INSIDE)
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "digits-abc123-group-0"
    (group,) = pod_groups(made)
    assert group["metadata"]["name"] == "digits-abc123-group-0"
    assert group["spec"] == {"minMember": 5, "queue": "q"}


# -- templates --


def test_a_template_is_merged_strategically() -> None:
    said = {
        "labels": {"team": "x"}, "tolerations": [{"key": "a", "operator": "Exists"}],
        "pod": {
            "metadata": {"labels": {"team": None, "more": "y"}},
            "spec": {
                "tolerations": [{"key": "b", "operator": "Exists"}], "runtimeClassName": "kata",
                "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                            {"name": "shm", "hostPath": {"path": "/dev/shm"}}, {"name": "v", "emptyDir": {}}],
                "containers": [
                    {"name": "program", "env": [{"name": "HOME", "value": "$(X)"}, {"name": "X", "value": "1"}],
                     "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}, "resources": {"limits": {"cpu": "3"}},
                     "volumeMounts": [{"mountPath": "/v", "name": "v"}], "ports": [{"containerPort": 1}]},
                    {"name": "side", "image": "side:1"},
                ],
            },
        },
    }  # fmt: skip
    made = shape(said)
    check(made.job, made.settings)
    pod = pod_of(said)
    assert pod["metadata"]["labels"]["more"] == "y"
    assert "team" not in pod["metadata"]["labels"]
    assert pod["spec"]["tolerations"] == [{"key": "b", "operator": "Exists"}], "replaced, as Kubernetes has it"
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert volumes["tmp"] == {"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}
    assert volumes["shm"] == {"name": "shm", "hostPath": {"path": "/dev/shm"}}, "a volume has one kind"
    ours = program(pod)
    env = {one["name"]: one.get("value") for one in ours["env"]}
    assert (env["HOME"], env["X"], env["A"]) == ("$(X)", "1", "$$(B)"), "a template is Kubernetes' own"
    assert ours["securityContext"]["capabilities"] == {"add": ["IPC_LOCK"]}
    assert ours["securityContext"]["allowPrivilegeEscalation"] is False
    assert ours["resources"]["limits"]["cpu"] == "3"
    assert {"mountPath": "/v", "name": "v"} in ours["volumeMounts"]
    (side,) = [one for one in pod["spec"]["containers"] if one["name"] == "side"]
    assert side["securityContext"]["readOnlyRootFilesystem"] is True, "restricted, too"


def test_templates_of_all_and_of_a_role_are_merged_one_after_the_other() -> None:
    said = {
        "pod": {"spec": {"schedulerName": "a", "priority": 1}},
        "roles": {"worker": {"pod": {"spec": {"schedulerName": "b", "priority": None}}}},
    }
    spec = pod_of(said)["spec"]
    assert (spec["schedulerName"], "priority" in spec) == ("b", False)
    assert master_pod(shape(said), INSIDE)["spec"]["schedulerName"] == "a"


def test_directives_of_a_strategic_merge() -> None:
    pod = {
        "metadata": {"labels": {"a": "1"}},
        "spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeSelector": {"x": "y"}},
    }

    def merged(**spec: Any) -> dict[str, Any]:
        return applied(pod, template({"spec": spec}, "p"))["spec"]

    assert merged(containers=[{"name": "a", "$patch": "delete"}])["containers"] == [{"name": "b"}]
    assert merged(containers=[{"$patch": "replace"}, {"name": "c"}])["containers"] == [{"name": "c"}]
    assert merged(nodeSelector={"$patch": "replace", "z": "1"})["nodeSelector"] == {"z": "1"}
    assert merged(nodeSelector={"x": None})["nodeSelector"] == {}
    assert "nodeSelector" not in merged(nodeSelector=None)
    assert pod["spec"]["containers"] == [{"name": "a"}, {"name": "b"}], "nothing is changed in place"
    finalizers = applied({"metadata": {"finalizers": ["a"]}}, template({"metadata": {"finalizers": ["b", "a"]}}, "p"))
    assert finalizers["metadata"]["finalizers"] == ["a", "b"]


CONTAINER = "spec.containers[program]"


def test_a_table_in_a_file_of_this_machine_is_refused_unless_a_volume_has_it(tmp_path: Path) -> None:
    (tmp_path / "a.db").touch()

    def checked(path: Path, *volumes: dict[str, str]) -> None:
        made = shape({"volumes": [*volumes]}, inputs={"train": {"url": f"sqlite:///{path}?table=t", "as": "shards"}})
        check(made.job, made.settings)

    with pytest.raises(BadInput, match=r"a\.db is of this machine, and the pods do not see it") as refusal:
        checked(tmp_path / "a.db", {"path": f"{tmp_path}-2", "claim": "data"})
    assert "inputs.train.url" in str(refusal.value.place)
    checked(tmp_path / "a.db", {"path": str(tmp_path), "claim": "data"})
    checked(tmp_path / "of-an-image.db")


@pytest.mark.parametrize(
    ("template", "path", "words"),
    [
        ({"metadata": {"name": "x"}}, "metadata.name", "name of its own"),
        ({"metadata": {"namespace": "x"}}, "metadata.namespace", "engines.kubernetes.namespace"),
        ({"metadata": {"labels": {"trainmaster/role": "x"}}}, "metadata.labels.trainmaster/role", "whose the pod is"),
        ({"metadata": {"labels": {"app.kubernetes.io/instance": "x"}}}, "metadata.labels.app.kubernetes.io/instance", "whose the pod is"),
        ({"metadata": {"labels": None}}, "metadata.labels", "whose the pod is"),
        ({"metadata": {"annotations": {"$patch": "replace"}}}, "metadata.annotations", "whose the pod is"),
        ({"spec": {"restartPolicy": "Always"}}, "spec.restartPolicy", "restart:"),
        ({"spec": {"hostname": "x"}}, "spec.hostname", "peers"),
        ({"spec": {"terminationGracePeriodSeconds": 5}}, "spec.terminationGracePeriodSeconds", "stop.grace"),
        ({"spec": {"serviceAccountName": "x"}}, "spec.serviceAccountName", "task_service_account"),
        ({"spec": {"nodeSelector": {"pool": "other"}}}, "spec.nodeSelector.pool", "nodes.labels"),
        ({"spec": {"nodeSelector": None}}, "spec.nodeSelector", "nodes.labels"),
        ({"spec": {"containers": [{"name": "program", "command": ["x"]}]}}, f"{CONTAINER}.command", "command: of the role"),
        ({"spec": {"containers": [{"name": "program", "image": "x"}]}}, f"{CONTAINER}.image", "image: of the role"),
        ({"spec": {"containers": [{"name": "program", "workingDir": "/"}]}}, f"{CONTAINER}.workingDir", "directory"),
        ({"spec": {"containers": [{"name": "program", "env": [{"name": "A", "value": "x"}]}]}},
         f"{CONTAINER}.env[A].value", "env: of the role"),
        ({"spec": {"containers": [{"name": "program", "resources": {"limits": {"memory": "1Gi"}}}]}},
         f"{CONTAINER}.resources.limits.memory", "resources: of the role"),
        ({"spec": {"containers": [{"name": "program", "resources": None}]}}, f"{CONTAINER}.resources", "resources: of the role"),
        ({"spec": {"containers": [{"name": "program", "volumeMounts": [{"mountPath": "/trainmaster/home", "name": "tmp"}]}]}},
         f"{CONTAINER}.volumeMounts[/trainmaster/home].name", "another path"),
        ({"spec": {"containers": [{"name": "program", "$patch": "delete"}]}}, CONTAINER, "ours"),
        ({"spec": {"containers": [{"$patch": "replace"}]}}, "spec.containers", "ours"),
        ({"spec": {"containers": None}}, "spec.containers", "ours"),
        ({"spec": {"$patch": "replace"}}, "spec", "ours"),
        ({"spec": {"initContainers": [{"name": "runtime", "image": "x"}]}}, "spec.initContainers[runtime].image", "runtime"),
        ({"spec": {"volumes": [{"name": "ours", "emptyDir": {"medium": "Memory"}}]}}, "spec.volumes[ours].emptyDir.medium", "another name"),
    ],
)  # fmt: skip
def test_a_template_that_changes_what_is_ours_is_reported_by_its_path(
    template: dict[str, Any], path: str, words: str
) -> None:
    with pytest.raises(BadInput) as told:
        pod_of({"pod": template}, {"nodes": {"labels": {"pool": "gpu"}}})
    assert told.value.place == f"engines.kubernetes.pod.{path}"
    assert words in str(told.value)


@st.composite
def part(draw: st.DrawFn, **fields: st.SearchStrategy[Any]) -> dict[str, Any]:
    """A mapping with a few of the fields, each as given or, seldom, null; seldom with a directive."""
    chosen = draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=2, unique=True))
    made = {name: None if seldom(draw) else draw(fields[name]) for name in chosen}
    return {**made, "$patch": draw(st.sampled_from(["merge", "replace", "delete"]))} if seldom(draw) else made


def seldom(draw: st.DrawFn) -> bool:
    return draw(st.integers(0, 15)) == 15


def elements(key: str, values: list[Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A list whose elements have a key of their own."""
    named = st.tuples(st.sampled_from(values), part(**fields)).map(lambda both: {key: both[0], **both[1]})
    listed = st.lists(named, max_size=3, unique_by=lambda one: one[key])
    return st.tuples(listed, st.integers(0, 15)).map(
        lambda both: [*both[0], *([{"$patch": "replace"}] if both[1] == 15 else [])]
    )


TEXT = st.sampled_from(["a", "Never", "true", "image:1", "worker-0"])
TEXTS = st.dictionaries(
    st.sampled_from(["x", "y", "trainmaster/role", "app.kubernetes.io/name", "pool"]), TEXT | st.none(), max_size=2
)
CONTAINERS = elements(
    "name", ["program", "runtime", "side"], image=TEXT, command=st.lists(TEXT, max_size=2), workingDir=TEXT, tty=st.booleans(),
    env=elements("name", ["A", "HOME", "X"], value=TEXT), volumeMounts=elements("mountPath", ["/trainmaster/home", "/tmp"], name=TEXT),
    resources=part(limits=st.dictionaries(st.sampled_from(["memory", "cpu"]), st.sampled_from(["1", "1Gi", None]))),
    lifecycle=part(preStop=st.just({"exec": {"command": ["a"]}})), securityContext=part(privileged=st.booleans()),
)  # fmt: skip
TEMPLATES = part(
    metadata=part(labels=TEXTS, annotations=TEXTS, name=TEXT, finalizers=st.lists(TEXT)),
    spec=part(
        restartPolicy=TEXT, hostname=TEXT, schedulerName=TEXT, nodeSelector=TEXTS, priority=st.integers(0, 9),
        containers=CONTAINERS, initContainers=CONTAINERS,
        volumes=elements("name", ["ours", "work", "tmp", "v"], emptyDir=st.just({}), secret=st.just({"secretName": "s"})),
    ),
)  # fmt: skip


def ours_of(pod: dict[str, Any]) -> Any:
    """What no template may change, in a pod that one was merged into."""
    spec = pod["spec"]
    named = {kind: {one["name"]: one for one in spec[kind]} for kind in ("containers", "initContainers", "volumes")}
    one, init = named["containers"]["program"], named["initContainers"]["runtime"]
    return (
        pod["metadata"]["name"], {name: value for name, value in pod["metadata"]["labels"].items() if name.startswith("trainmaster/")},
        spec["restartPolicy"], spec["hostname"], spec["nodeSelector"]["pool"], one["image"], one["command"], one["workingDir"],
        one["resources"]["limits"]["memory"], [each for each in one["env"] if each["name"] in ("A", "N")],
        [each for each in one["volumeMounts"] if each["mountPath"] == "/trainmaster/home"],
        init["image"], init["command"], named["volumes"]["ours"], pod["metadata"]["annotations"]["trainmaster/task"],
    )  # fmt: skip


@given(TEMPLATES)
def test_a_template_is_refused_or_leaves_alone_what_is_ours(drawn: dict[str, Any]) -> None:
    role = {"nodes": {"labels": {"pool": "gpu"}}}
    try:
        made = pod_of({"pod": drawn}, role)
    except BadInput:
        return
    assert ours_of(made) == ours_of(pod_of({}, role))


def test_what_a_template_says_as_it_is_anyway_is_no_conflict() -> None:
    said = {
        "pod": {
            "apiVersion": "v1",
            "kind": "Pod",
            "spec": {"restartPolicy": "Never", "containers": [{"name": "program"}]},
        }
    }
    assert pod_of(said) == pod_of()


# -- what can never be --


@pytest.mark.parametrize(
    ("said", "role", "place", "words"),
    [
        ({"roles": {"workr": {}}}, {}, "engines.kubernetes.roles.workr", "did you mean worker?"),
        ({"pod": {"spec": {"containers": [{"name": "side", "image": "A B"}]}}}, {},
         "engines.kubernetes.pod.spec.containers[side].image", "not the name of an image"),
        ({"pod": {"spec": {"containers": [{"name": "side"}]}}}, {}, "engines.kubernetes.pod.spec.containers[side]", "called program"),
        ({"roles": {"master": {"pod": {"spec": {"restartPolicy": "Never"}}}}}, {},
         "engines.kubernetes.roles.master.pod.spec.restartPolicy", "ours"),
        ({}, {"resources": {"extended": {"cpu": 1}}}, "roles.worker.resources.extended.cpu", "cores"),
        ({}, {"resources": {"extended": {"nvidia.com/gpu": 1}}}, "roles.worker.resources.extended.nvidia.com/gpu", "gpus"),
        ({}, {"nodes": {"labels": {"a": "b c"}}}, "roles.worker.nodes.labels.a", "not the value of a label"),
        ({}, {"nodes": {"exclude": ["Node 1"]}}, "roles.worker.nodes.exclude[0]", "not the name of an object"),
    ],
)  # fmt: skip
def test_what_can_never_be_is_refused_at_submit(
    said: dict[str, Any], role: dict[str, Any], place: str, words: str
) -> None:
    made = job(said, role)
    with pytest.raises(BadInput) as told:
        check(made, settings(made.engines["kubernetes"]))
    assert told.value.place == place
    assert words in str(told.value)


def test_annotations_of_a_job_are_those_of_its_pods() -> None:
    made = shape(annotations={"example.org/a": "b"})
    check(made.job, made.settings)
    assert master_pod(made, INSIDE)["metadata"]["annotations"]["example.org/a"] == "b"
    odd = shape(annotations={"not a name": "b"})
    with pytest.raises(BadInput, match="not the name of a label"):
        check(odd.job, odd.settings)


# -- what the API server refuses --

UNDECODED = 'Pod in version "v1" cannot be handled as a Pod: '
PATTERN = r"'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"  # as the server writes it


@pytest.mark.parametrize(
    ("said", "answer", "place", "words"),
    [
        ({"pod": {"spec": {"tolerationz": []}}}, 'strict decoding error: unknown field "spec.tolerationz"',
         "engines.kubernetes.pod.spec.tolerationz", "kubectl explain pod.spec"),
        ({"roles": {"worker": {"pod": {"spec": {"containers": [{"name": "side", "image": "i", "envs": []}]}}}}},
         'strict decoding error: unknown field "spec.containers[1].envs"', "engines.kubernetes.roles.worker.pod.spec.containers[side].envs",
         "kubectl explain pod.spec.containers"),
        ({"pod": {"spec": {"hostNetwork": "yes"}}},
         "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
         "engines.kubernetes.pod.spec.hostNetwork", "of type bool"),
        ({"tolerations": [{"effct": "x"}]}, 'strict decoding error: unknown field "spec.tolerations[0].effct"',
         "engines.kubernetes.tolerations", "effct"),
        ({"pod": {"spec": {"containers": [{"name": "program", "resources": {"limits": {"cpu": "3", "ephemeral-storage": "1GB"}}}]}}},
         f"quantities must match the regular expression {PATTERN}",
         "engines.kubernetes.pod.spec.containers[program].resources.limits.ephemeral-storage", "1Gi"),
        ({"pod": {"spec": {"dnsPolicy": "Odd"}}}, {"field": "spec.dnsPolicy", "message": 'Unsupported value: "Odd"'},
         "engines.kubernetes.pod.spec.dnsPolicy", 'Unsupported value: "Odd"'),
        ({"roles": {"worker": {"volumes": [{"host_path": "/a", "path": "/a", "type": "Dir"}]}}},
         {"field": "spec.volumes[4].hostPath.type", "message": 'Unsupported value: "Dir"'},
         "engines.kubernetes.roles.worker.volumes", "Dir"),
        ({}, {"field": "spec.hostname", "message": "is ours"}, "roles.worker", "is ours"),
    ],
)  # fmt: skip
def test_a_refusal_of_the_server_is_reported_by_the_key_of_the_job(
    said: dict[str, Any], answer: str | dict[str, str], place: str, words: str
) -> None:
    if isinstance(answer, str):
        status: dict[str, Any] = {"code": 400, "message": UNDECODED + answer}
    else:
        message = f'Pod "x" is invalid: {answer["field"]}: {answer["message"]}'
        status = {"code": 422, "message": message, "details": {"causes": [answer]}}

    class Server:
        async def create(self, *_: Any, **__: Any) -> None:
            raise of_status(status)

    with pytest.raises(BadInput) as refusal:
        asyncio.run(try_pod(Server(), shape(said), "worker", pod_of(said)))  # type: ignore[arg-type]
    assert (refusal.value.place, refusal.value.anchor, refusal.value.status) == (place, "pod-refused", 2)
    assert words in str(refusal.value)
    assert UNDECODED not in str(refusal.value)
