"""What of a job's paths, objects and packages can be known at submit to come to nothing on Kubernetes."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import pytest

from trainmaster.core.containers import Request
from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.core.spec.job import Job
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.kubernetes.errors import failed
from trainmaster.engines.kubernetes.master.waiting import denial
from trainmaster.engines.kubernetes.pods.pods import PodBootstrap, Shape, check, master_pod, request_of, task_pod
from trainmaster.engines.kubernetes.settings import MASTER, settings
from trainmaster.engines.kubernetes.submit import rights
from trainmaster.engines.kubernetes.submit.references import check_references
from trainmaster.engines.kubernetes.submit.refusals import try_pod
from trainmaster.kube.config import Config, Credentials
from trainmaster.kube.errors import of_status
from trainmaster.kube.kinds import CLAIMS, SECRETS, Kind
from trainmaster.log.configmaps import _storage_errors

CLAIM = {"claim": "results", "path": "/results"}
MOUNT = {"name": "v", "mountPath": "/results"}
OUTPUT = {"model": {"url": "file:///results/model", "from": "worker:0"}}


def job(section: dict[str, Any], **keys: Any) -> Job:
    roles = {"worker": {"command": "true"}}
    data = {"name": "t", "environment": {"image": "image:1"}, "roles": roles, "engines": {"kubernetes": section}}
    return job_from({**data, **keys})


def checked(section: dict[str, Any], **keys: Any) -> None:
    check(job(section, **keys), settings(section))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "/results/model is in the pod of the master alone, and goes with it: no volume is mounted there"),
        ({"volumes": [{"claim": "data", "path": "/result"}]}, "no volume is mounted there"),
        ({"volumes": [{"empty": True, "path": "/results"}]}, "a volume of the pod of the master alone, and goes with it: emptyDir"),
        ({"volumes": [{"ephemeral": "1GiB", "path": "/results"}]}, "goes with it: ephemeral at /results"),
        ({"volumes": [{"secret": "s", "path": "/results"}]}, "goes with it: secret at /results"),
        ({"volumes": [CLAIM, {"empty": True, "path": "/results/model"}]}, "goes with it: emptyDir at /results/model"),
        ({"volumes": [{**CLAIM, "read_only": True}]}, "cannot write /results/model: its volume at /results is read_only"),
        ({"roles": {"worker": {"volumes": [CLAIM]}}}, "in the pod of the master alone"),
        ({"volumes": [CLAIM], "roles": {"worker": {"volumes": [{"claim": "other", "path": "/results"}]}}},
         "worker and the master have different volumes at /results/model"),
        ({"volumes": [CLAIM], "run_master": "client"}, "the master, which runs on this machine"),
        ({"pod": {"spec": {"volumes": [{"name": "v", "emptyDir": {}}], "containers": [{"name": "program", "volumeMounts": [MOUNT]}]}}},
         "goes with it: emptyDir"),
    ],
)  # fmt: skip
def test_an_output_that_would_go_with_its_pod_is_refused_by_its_key(section: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as refusal:
        checked(section, outputs=OUTPUT)
    assert words in refusal.value.message
    assert (refusal.value.place, refusal.value.status) == ("outputs.model.url: file:///results/model", 2)
    assert "engines.kubernetes." in refusal.value.mend


@pytest.mark.parametrize(
    "section",
    [
        {"volumes": [CLAIM]},
        {"volumes": [{"nfs": "files:/data", "path": "/results"}]},
        {"volumes": [{"host_path": "/mnt", "path": "/results/model"}]},
        {"roles": {"worker": {"volumes": [CLAIM]}, "master": {"volumes": [CLAIM]}}},
        {"pod": {"spec": {
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
            "containers": [{"name": "program", "volumeMounts": [MOUNT]}],
        }}},
    ],
)  # fmt: skip
def test_an_output_on_a_volume_of_all_pods_is_taken(section: dict[str, Any]) -> None:
    checked(section, outputs=OUTPUT, checkpoint={"path": "ckpt", "url": "file:///results/model/ckpt"})


def test_a_checkpoint_that_would_go_with_its_pod_is_refused() -> None:
    with pytest.raises(BadInput) as refusal:
        checked({}, checkpoint={"path": "ckpt", "url": "file:///tmp/ckpt"})
    assert refusal.value.place == "checkpoint.url: file:///tmp/ckpt"
    checked({}, checkpoint={"path": "ckpt", "url": "s3://bucket/ckpt"}, outputs={"model": "s3://bucket/model"})


def test_packages_that_would_be_shipped_are_refused_before_they_are_built() -> None:
    with pytest.raises(BadInput) as refusal:
        checked({}, environment={"image": "image:1", "requirements": "/w/needs.txt"})
    assert refusal.value.place == "environment.requirements: /w/needs.txt"
    assert "tm image build image:1 -r /w/needs.txt" in refusal.value.mend
    checked({}, environment={"image": "image:1", "requirements": "/w/needs.txt", "path": "/volume/env"})


class Cluster:
    """A namespace that has no object but those in `present`; at Secrets the user may not look."""

    namespace = "research"

    def __init__(self, *present: str) -> None:
        self.present = present

    async def get(self, kind: Kind, name: str, **_: Any) -> dict[str, Any]:
        if kind == SECRETS:
            raise of_status({"code": 403})
        if f"{kind.plural}/{name}" not in self.present:
            raise of_status({"code": 404})
        return {}


REFERRING: dict[str, tuple[dict[str, Any], str, str]] = {
    "a claim": ({"volumes": [CLAIM]}, "there is no volume claim results", "engines.kubernetes.volumes: results"),
    "a claim of a role": (
        {"roles": {"worker": {"volumes": [CLAIM]}}}, "no volume claim results", "engines.kubernetes.roles.worker.volumes: results",
    ),
    "a config map": (
        {"volumes": [{"config_map": "conf", "path": "/c"}]}, "no ConfigMap conf", "engines.kubernetes.volumes: conf",
    ),
    "variables of a template": (
        {"pod": {"spec": {"containers": [{"name": "program", "envFrom": [{"configMapRef": {"name": "conf"}}]}]}}}, "no ConfigMap conf",
        "engines.kubernetes.pod: conf",
    ),
}  # fmt: skip


def look(section: dict[str, Any], *present: str) -> None:
    described = job(section)
    shape, inside = Shape("t", described, settings(section)), PodBootstrap(command=["true"])
    request: Request = request_of("worker", described.roles["worker"])
    pods = {"worker": task_pod(shape, request, inside), MASTER: master_pod(shape, inside)}
    asyncio.run(check_references(Cluster(*present), shape.settings, pods, ()))  # type: ignore[arg-type]


@pytest.mark.parametrize("what", REFERRING)
def test_an_object_that_is_not_there_is_refused_by_the_key_that_names_it(what: str) -> None:
    section, words, place = REFERRING[what]
    with pytest.raises(BadInput) as refusal:
        look(section)
    assert words in refusal.value.message
    assert (refusal.value.place, refusal.value.anchor) == (place, "no-object")
    look(section, f"{CLAIMS.plural}/results", "configmaps/conf")


def test_what_may_be_missing_or_may_not_be_looked_at_is_taken() -> None:
    look({"volumes": [{"config_map": {"name": "conf", "optional": True}, "path": "/c"}, {"secret": "s", "path": "/s"}]})


@pytest.mark.parametrize(
    ("section", "words", "place", "mend"),
    [
        ({"volumes": [{"host_path": "/etc", "path": "/x"}]},
         'violates PodSecurity "restricted:latest": hostPath volumes (volume "volume-0")', "engines.kubernetes.volumes", "a claim"),
        ({"roles": {"worker": {"run_as": 0}}}, 'violates PodSecurity "restricted:latest": runAsNonRoot != true (pod must not set it)',
         "engines.kubernetes.roles.worker.run_as", "other than 0"),
        ({}, "failed quota: small: must specify limits.cpu for: program", "engines.kubernetes.limit_cores",
         "set engines.kubernetes.limit_cores: true"),
    ],
)  # fmt: skip
def test_a_refusal_by_a_policy_names_the_setting(section: dict[str, Any], words: str, place: str, mend: str) -> None:
    class Server:
        async def create(self, *_: Any, **__: Any) -> None:
            raise of_status({"code": 403, "message": f'pods "x" is forbidden: {words}'})

    described = job(section)
    shape = Shape("t", described, settings(section))
    with pytest.raises(BadInput) as refusal:
        asyncio.run(try_pod(Server(), shape, "worker", {"spec": {}}))  # type: ignore[arg-type]
    assert refusal.value.place == place
    assert mend in refusal.value.mend


def test_a_master_whose_account_is_refused_is_reported_so_and_a_user_to_log_in() -> None:
    refusal = of_status({"code": 401, "message": "Unauthorized"})
    account = "the service account was replaced, or its token is refused: tm kill, tm retry"
    assert "service account was replaced" in denial(refusal).detail
    of_pod = Config("https://1.2.3.4", "research", "", "", None, Credentials())
    assert failed(refusal, of_pod).mend == account
    assert "log in again" in failed(refusal, attrs.evolve(of_pod, context="c", user="me")).mend
    for url, mend in {"configmaps://research/t-1": account, "configmaps://c@research/t-1": "log in anew"}.items():
        with pytest.raises(StorageFailed) as failure, _storage_errors("read", url):
            raise of_status({"code": 401, "message": "Unauthorized"})
        assert failure.value.mend == mend


def test_a_right_that_is_missing_is_named_once() -> None:
    class Nobody:
        namespace, config = "research", Config("https://1.2.3.4", "research", "c", "me", None, Credentials())

        async def review(self, *_: Any) -> bool:
            return False

    with pytest.raises(BadInput) as refusal:
        asyncio.run(rights.check(Nobody(), settings({"run_master": "client"}), False))  # type: ignore[arg-type]
    assert refusal.value.message.count("create pods") == 1
    assert refusal.value.message.endswith("in namespace research, or there is no namespace research")
