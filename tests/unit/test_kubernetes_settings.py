"""`engines.kubernetes:` of a job: what is read, and how each wrong value is told."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster.core.errors import BadInput
from trainmaster.engines.kubernetes.settings import NO_SHM, Pods, Priority, RunAs, Settings, settings


def test_nothing_said_is_the_defaults() -> None:
    said = settings({})
    assert said == Settings()
    assert (said.run_master, said.gang_timeout, said.task_service_account) == ("cluster", 300.0, "")
    assert said.of("worker") == Pods()
    assert said.of("worker").run_as == RunAs(1000, 1000, 1000)
    assert said.of("worker").accelerator == "nvidia.com/gpu"


def test_what_is_said_of_the_job() -> None:
    given = {
        "context": "prod", "namespace": "research", "service_account": "trainer", "run_master": "client",
        "task_service_account": "reader", "runtime_image": "registry.example/trainmaster:1", "queue": "lq", "gang_timeout": "2m",
        "page": "https://console.example/{namespace}/{job}",
    }  # fmt: skip
    said = settings(given)
    assert {name: getattr(said, name) for name in given} == {**given, "gang_timeout": 120.0}
    assert settings({"gang_timeout": "none"}).gang_timeout is None
    assert settings({"volcano": "q"}).volcano == "q"


@pytest.mark.parametrize(
    ("given", "field", "read"),
    [
        ({"pull": "missing"}, "pull", "IfNotPresent"),
        ({"pull_secrets": ["a", "b.c"]}, "pull_secrets", ("a", "b.c")),
        ({"node_selector": {"example.org/pool": "gpu"}}, "node_selector", {"example.org/pool": "gpu"}),
        ({"tolerations": [{"key": "k", "operator": "Exists"}]}, "tolerations", ({"key": "k", "operator": "Exists"},)),
        ({"affinity": {"podAntiAffinity": {}}}, "affinity", {"podAntiAffinity": {}}),
        ({"priority_class": "high"}, "priority_class", Priority("high")),
        ({"priority_class": {"class": "a", "fraction": 0.5, "other": "b"}}, "priority_class", Priority("a", 0.5, "b")),
        ({"priority_class": 0.5}, "priority_class", Priority("high", 0.5, "low")),
        ({"shm": "8GiB"}, "shm", 8 * 2**30),
        ({"shm": "none"}, "shm", NO_SHM),
        ({"run_as": {"user": 2000}}, "run_as", RunAs(2000, 2000, 2000)),
        ({"run_as": 2000}, "run_as", RunAs(2000, 2000, 2000)),
        ({"run_as": {"user": 0, "group": 5, "fs_group": 6}}, "run_as", RunAs(0, 5, 6)),
        ({"run_as": {"group": 5}}, "run_as", RunAs(1000, 5, 5)),
        ({"run_as": "image"}, "run_as", RunAs(None, None, None)),
        ({"accelerator": "amd.com/gpu"}, "accelerator", "amd.com/gpu"),
        ({"limit_cores": True}, "limit_cores", True),
        ({"labels": {"team": "vision"}}, "labels", {"team": "vision"}),
        ({"annotations": {"example.org/note": "any: text!"}}, "annotations", {"example.org/note": "any: text!"}),
    ],
)
def test_what_is_said_of_pods(given: dict[str, Any], field: str, read: Any) -> None:
    assert getattr(settings(given).of("worker"), field) == read
    (name, value), *_ = given.items()
    assert getattr(settings({"roles": {"ps": {name: value}}}).of("ps"), field) == read, "the same of one role"
    assert getattr(settings({"roles": {"ps": {name: value}}}).of("worker"), field) == getattr(Pods(), field)


def test_what_is_said_of_a_role_meets_what_is_said_of_all() -> None:
    said = settings(
        {
            "node_selector": {"pool": "cpu", "zone": "a"}, "labels": {"team": "x"}, "pull": "always", "shm": "1GiB",
            "tolerations": [{"key": "a", "operator": "Exists"}], "pull_secrets": ["one"],
            "volumes": [{"claim": "data", "path": "/data"}, {"empty": True, "path": "/scratch"}],
            "priority_class": {"worker": "high", "master": "top"}, "pod": {"spec": {"hostIPC": False}},
            "roles": {
                "worker": {
                    "node_selector": {"pool": "gpu", "zone": None}, "labels": {"kind": "w"}, "shm": "4GiB", "pull_secrets": ["two", "one"],
                    "tolerations": [{"key": "b", "operator": "Exists"}], "volumes": [{"claim": "fast", "path": "/data"}],
                    "pod": {"spec": {"schedulerName": "mine"}},
                },
            },
        }
    )  # fmt: skip
    worker, master, other = said.of("worker"), said.of("master"), said.of("evaluator")
    assert worker.node_selector == {"pool": "gpu"}, "added, replaced, and without a value taken away"
    assert worker.labels == {"team": "x", "kind": "w"}
    assert (worker.pull, worker.shm, worker.pull_secrets) == ("Always", 4 * 2**30, ("one", "two"))
    assert [one["key"] for one in worker.tolerations] == ["a", "b"]
    assert [(one.path, one.source) for one in worker.volumes] == [
        ("/scratch", {"emptyDir": {}}),
        ("/data", {"persistentVolumeClaim": {"claimName": "fast"}}),
    ]
    assert worker.priority_class == Priority("high")
    assert [one.place for one in worker.pod] == ["engines.kubernetes.pod", "engines.kubernetes.roles.worker.pod"]
    assert master.priority_class == Priority("top")
    assert master.node_selector == other.node_selector == {"pool": "cpu", "zone": "a"}
    assert other.priority_class is None


@pytest.mark.parametrize(
    ("entry", "source", "how"),
    [
        ({"host_path": "/data"}, {"hostPath": {"path": "/data"}}, {}),
        ({"host_path": "/data", "type": "Directory"}, {"hostPath": {"path": "/data", "type": "Directory"}}, {}),
        ({"claim": "c", "sub_path": "a/b"}, {"persistentVolumeClaim": {"claimName": "c"}}, {"subPath": "a/b"}),
        ({"config_map": "m", "read_only": True}, {"configMap": {"name": "m"}}, {"readOnly": True}),
        ({"config_map": {"name": "m", "items": {"k": "d/f"}, "optional": True}},
         {"configMap": {"name": "m", "items": [{"key": "k", "path": "d/f"}], "optional": True}}, {}),
        ({"secret": "s"}, {"secret": {"secretName": "s"}}, {}),
        ({"secret": {"name": "s", "mode": "0440"}}, {"secret": {"secretName": "s", "defaultMode": 0o440}}, {}),
        ({"empty": True}, {"emptyDir": {}}, {}),
        ({"empty": None}, {"emptyDir": {}}, {}),
        ({"empty": "1GiB"}, {"emptyDir": {"sizeLimit": str(2**30)}}, {}),
        ({"empty": {"memory": True, "size": "1MiB"}}, {"emptyDir": {"medium": "Memory", "sizeLimit": str(2**20)}}, {}),
        ({"ephemeral": "1GiB"}, {"ephemeral": {"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": str(2**30)}}}}}}, {}),
        ({"ephemeral": {"size": "1GiB", "storage_class": "fast", "mode": "ReadWriteOncePod"}},
         {"ephemeral": {"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOncePod"], "resources": {"requests": {"storage": str(2**30)}}, "storageClassName": "fast"}}}}, {}),
        ({"nfs": "files.example.org:/a/b"}, {"nfs": {"server": "files.example.org", "path": "/a/b"}}, {}),
    ],
)  # fmt: skip
def test_volumes(entry: dict[str, Any], source: dict[str, Any], how: dict[str, Any]) -> None:
    (volume,) = settings({"volumes": [{**entry, "path": "/in//it/"}]}).pods.volumes
    assert volume.volume("v") == {"name": "v", **source}
    assert volume.mount("v") == {"name": "v", "mountPath": "/in/it", **how}


@pytest.mark.parametrize(
    ("given", "place", "words"),
    [
        ({"namespce": "x"}, "namespce", "did you mean namespace?"),
        ({"namespace": "Research"}, "namespace", "not the name of an object"),
        ({"namespace": 3}, "namespace", "not the name of an object"),
        ({"context": ""}, "context", "is empty"),
        ({"runtime_image": "team/Runtime:1"}, "runtime_image", "not the name of an image"),
        ({"run_master": "here"}, "run_master", "write cluster or client"),
        ({"gang_timeout": 5}, "gang_timeout", "needs a unit"),
        ({"page": "javascript:alert(1)"}, "page", "not the address of a page"),
        ({"queue": "a", "volcano": "b"}, "volcano", "Kueue"),
        ({"pull": "Always"}, "pull", "always, missing, never"),
        ({"pull_secrets": "one"}, "pull_secrets", "must be a list"),
        ({"pull_secrets": ["a", "B"]}, "pull_secrets[1]", "'B'"),
        ({"node_selector": {"a/b/c": "x"}}, "node_selector.a/b/c", "not the name of a label"),
        ({"node_selector": {"gpu": True}}, "node_selector.gpu", 'write "true", in quotes'),
        ({"node_selector": {"gpu": "-x"}}, "node_selector.gpu", "not the value of a label"),
        ({"labels": {"trainmaster/role": "x"}}, "labels.trainmaster/role", "is ours"),
        ({"labels": ["a"]}, "labels", "must be a mapping"),
        ({"annotations": {"a b": "x"}}, "annotations.a b", "not the name of a label"),
        ({"tolerations": {"key": "x"}}, "tolerations", "must be a list"),
        ({"affinity": []}, "affinity", "must be a mapping"),
        ({"priority_class": {"class": "a", "fraction": 2}}, "priority_class.fraction", "between 0 and 1"),
        ({"priority_class": {"class": "a", "rest": "b"}}, "priority_class.rest", "no such key"),
        ({"priority_class": {"worker": {"fraction": 0.5}}}, "priority_class.worker.class", "missing"),
        ({"priority_class": True}, "priority_class", "must be a mapping"),
        ({"shm": 64}, "shm", "needs a unit"),
        ({"run_as": {"user": "root"}}, "run_as.user", "must be the number of a user"),
        ({"run_as": {"usr": 1}}, "run_as.usr", "did you mean user?"),
        ({"run_as": "root"}, "run_as", "must be a mapping"),
        ({"accelerator": "gpu"}, "accelerator", "nvidia.com/gpu"),
        ({"limit_cores": 3}, "limit_cores", "true or false"),
        ({"roles": []}, "roles", "must be a mapping"),
        ({"roles": {"worker": {"context": "x"}}}, "roles.worker.context", "no such key"),
        ({"roles": {"worker": {"volumes": [{"claim": "a"}]}}}, "roles.worker.volumes[0].path", "missing"),
        ({"volumes": [{"path": "/a"}]}, "volumes[0]", "no source"),
        ({"volumes": [{"claim": "a", "secret": "b", "path": "/a"}]}, "volumes[0]", "claim and secret"),
        ({"volumes": [{"claim": "a", "path": "a"}]}, "volumes[0].path", "not a whole path"),
        ({"volumes": [{"claim": "a", "path": "/a/../b"}]}, "volumes[0].path", "not a whole path"),
        ({"volumes": [{"claim": "a", "path": "/trainmaster/x"}]}, "volumes[0].path", "nothing can be mounted"),
        ({"volumes": [{"claim": "a", "path": "/"}]}, "volumes[0].path", "nothing can be mounted"),
        ({"volumes": [{"claim": "a", "path": "/a"}, {"claim": "b", "path": "/a"}]}, "volumes[1].path", "two volumes"),
        ({"volumes": [{"claim": "a", "path": "/a", "type": "File"}]}, "volumes[0].type", "has no type"),
        ({"volumes": [{"claim": "a", "path": "/a", "sub_path": "../x"}]}, "volumes[0].sub_path", "within the volume"),
        ({"volumes": [{"empty": {"sze": "1GiB"}, "path": "/a"}]}, "volumes[0].empty.sze", "did you mean size?"),
        ({"volumes": [{"ephemeral": {}, "path": "/a"}]}, "volumes[0].ephemeral.size", "missing"),
        ({"volumes": [{"config_map": {}, "path": "/a"}]}, "volumes[0].config_map.name", "missing"),
        ({"volumes": [{"secret": {"name": "s", "mode": "rw"}, "path": "/a"}]}, "volumes[0].secret.mode", "not a mode"),
        ({"volumes": [{"nfs": "server", "path": "/a"}]}, "volumes[0].nfs", "SERVER:/PATH"),
        ({"volumes": "host_path=/a,mount_path=/a"}, "volumes", "ElasticDL's claim_name is claim here, and its mount_path is path"),
        ({"volumes": [1]}, "volumes[0]", "must be a mapping"),
        ({"pod": {"spc": {}}}, "pod.spc", "a pod has no such field"),
        ({"pod": {"containers": []}}, "pod.containers", "below metadata: or spec:"),
        ({"pod": []}, "pod", "must be a mapping"),
        ({"pod": {"spec": []}}, "pod.spec", "must be a mapping"),
        ({"pod": {"spec": {"affinity": "x"}}}, "pod.spec.affinity", "must be a mapping"),
        ({"pod": {"kind": "Deployment"}}, "pod.kind", "is not a pod"),
        ({"pod": {"spec": {"containers": {"name": "program"}}}}, "pod.spec.containers", "must be a list"),
        ({"pod": {"spec": {"containers": [{"image": "x"}]}}}, "pod.spec.containers[0].name", "missing"),
        ({"pod": {"spec": {"containers": [{"name": "a"}, {"name": "a"}]}}}, "pod.spec.containers[1]", "two with name"),
        ({"pod": {"spec": {"containers": [{"name": "program", "env": [{"value": "x"}]}]}}},
         "pod.spec.containers[program].env[0].name", "missing"),
        ({"pod": {"spec": {"containers": [{"name": "a", "$patch": "remove"}]}}}, "pod.spec.containers[a].$patch", "delete"),
        ({"pod": {"spec": {"containers": [{"name": "a", "securityContext": 1}]}}}, "pod.spec.containers[a].securityContext", "must be a"),
        ({"pod": {"spec": {"containers": ["a"]}}}, "pod.spec.containers[0]", "must be a mapping"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_reported_with_its_place(given: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(BadInput) as told:
        settings(given)
    assert told.value.place == f"engines.kubernetes.{place}"
    assert told.value.anchor == "engine-settings"
    assert words in str(told.value)


def test_which_fields_a_pod_has_is_left_to_kubernetes() -> None:
    given = {"spec": {"containers": [{"name": "program", "brandNewThing": 1}], "anotherThingAltogether": {}}}
    assert settings({"pod": given}).pods.pod[0].data == given
