"""The launch context of a container: files of HDFS, a command, and the payload."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from trainmaster.engines.packed import packed
from trainmaster.engines.yarn.container.payload import SECRETS
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.credentials import Credentials

ARCHIVE = "runtime"  # the link to the runtime archive in a container's directory


@attrs.frozen(slots=True)
class Resource:
    """A file of HDFS that YARN brings to containers. `stamp`: its modification time in ms since 1970, which must be exact."""

    url: str
    size: int
    stamp: int
    public: bool
    unpacked: bool = False

    def message(self) -> y.LocalResourceProto:
        parts = urlsplit(self.url)
        return y.LocalResourceProto(
            resource=y.URLProto(scheme=parts.scheme, host=parts.netloc.partition(":")[0], port=parts.port or -1, file=parts.path),
            size=self.size, timestamp=self.stamp, type=y.ARCHIVE if self.unpacked else y.FILE,
            visibility=y.PUBLIC if self.public else y.PRIVATE,
        )  # fmt: skip


def context(
    entry: str, payload: Mapping[str, Any], secret: Mapping[str, Any], resources: Mapping[str, Resource],
    tokens: Credentials | None = None, environment: Mapping[str, str] | None = None, view: str = "",
) -> y.ContainerLaunchContextProto:  # fmt: skip
    """Return a container that becomes `entry` (MODULE:FUNCTION) of the runtime archive, with `resources` under their names in its
    directory. `view`: who may see it, beside its owner and administrators, as Hadoop writes access lists.
    """
    credentials = Credentials(dict(tokens.tokens) if tokens else {}, {SECRETS: json.dumps(dict(secret)).encode()})
    launch_context = y.ContainerLaunchContextProto(
        tokens=credentials.write(),
        command=[f"exec sh ./{ARCHIVE}/start {entry} 1><LOG_DIR>/stdout 2><LOG_DIR>/stderr"],
    )
    for name, resource in resources.items():
        launch_context.localResources.add(key=name, value=resource.message())
    for name, value in {**(environment or {}), **packed(payload)}.items():
        launch_context.environment.add(key=name, value=value)
    if view:
        launch_context.application_ACLs.add(accessType=y.APPACCESS_VIEW_APP, acl=view)
    return launch_context
