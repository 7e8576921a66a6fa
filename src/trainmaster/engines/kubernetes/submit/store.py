"""Know where a cluster's jobs are kept, and find one of them again."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.kubernetes.names import PART
from trainmaster.engines.kubernetes.settings import settings
from trainmaster.engines.kubernetes.submit.objects import JOB_PART, created_at
from trainmaster.kube.client import Client
from trainmaster.kube.errors import Forbidden, NotFound
from trainmaster.kube.kinds import CONFIGMAPS, SECRETS, Kind
from trainmaster.log.configmaps import SCHEME, url_of

if TYPE_CHECKING:
    from trainmaster.engines.kubernetes.client import KubernetesClient


class Store:
    """A store holds a cluster's jobs and their data. A job that names no storage has its log in ConfigMaps, and no data there; any other
    has its storage, which holds inputs and outputs of the submitter's machine too.
    """

    def __init__(self, client: KubernetesClient, job: Any = None) -> None:
        self._client, self._job = client, job

    @property
    def jobs(self) -> str:
        options = None if self._job is None else settings(self._job.engines.get("kubernetes") or {})
        config = self._client.config(options)
        return url_of(config.context, config.namespace)

    @property
    def inputs(self) -> str:
        return self.private("inputs")

    @property
    def outputs(self) -> str:
        return self.private("outputs")

    def private(self, kind: str) -> str:
        """Return the folder `inputs` or `outputs` of the job's storage. Raises BadInput where it has none."""
        if self._job is None or not stored_elsewhere(self._job):
            raise BadInput(
                f"{kind} that are paths of this machine need a storage that the pods reach, and the job has none", place="storage",
                mend="set storage to a URL (s3://, hdfs://); or name places that the pods reach; or mount a volume by "
                "engines.kubernetes.volumes, and write file://PATH", anchor="not-on-the-cluster",
            )  # fmt: skip
        return f"{self._job.storage.rstrip('/')}/{kind}"

    def job_access(self, job: str) -> dict[str, Any] | None:
        """Return how to reach a job of ours that was submitted from another machine; None where there is none."""
        client = self._client

        async def look(api: Client) -> dict[str, Any] | None:
            root = await get_or_none(api, CONFIGMAPS, job)
            if root is None or root["metadata"].get("labels", {}).get(PART) != JOB_PART:
                return None
            try:
                secret = await get_or_none(api, SECRETS, job)
            except Forbidden as error:
                raise BadInput(
                    f"{job} was submitted from another machine, and you may not read its Secret, by which its master knows who asks: "
                    f"{error.message}", place=f"namespace {api.namespace}", anchor="job-rights",
                    mend="ask an administrator for the role edit there; or use the machine that it was submitted from",
                ) from error  # fmt: skip
            files = {name: json.loads(root["data"][f"{name}.json"]) for name in ("job", "site")}
            described = job_from(files["job"])
            if not stored_elsewhere(described):
                files["job"]["storage"] = self.jobs
            elif not is_reached_from_everywhere(described.storage):
                return None  # nobody submits such a job: it would be read, and written, on this machine
            token = b64decode(secret["data"]["token"]).decode() if secret else ""
            return {
                **files,
                "token": token,
                "certificate": root["data"]["certificate"],
                "submitted": created_at(root).timestamp(),
                "shared": True,
            }

        return client.call(client.config(), look)


def parts(application: str) -> tuple[str, str, str]:
    """Return the context, namespace and id that an application names."""
    place, _, job_id = application.rpartition("/")
    context, _, namespace = place.rpartition("@")
    return context, namespace, job_id


def stored_elsewhere(job: Any) -> bool:
    """Tell whether the job has a storage of its own, which its agents reach too."""
    return bool(job.storage) and not job.storage.startswith(SCHEME)


def is_reached_from_everywhere(storage: str) -> bool:
    """Tell whether a storage is the same for the pods and for this machine: a path is not."""
    return urlsplit(storage).scheme.lower() not in ("", "file", "local")


async def get_or_none(client: Client, kind: Kind, name: str) -> dict[str, Any] | None:
    try:
        return await client.get(kind, name)
    except NotFound:
        return None
