"""What a cluster's own pages tell, asked over HTTP: whether it is ready, and of which labels its nodes are.

Asked of this machine alone, so no proxy is ever in between.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any

from trainmaster.core.errors import EngineFailed

_PATIENCE = 5.0  # s an answer may take; who does not get it asks again
_DONE = 60.0  # s that something may take to be done: on a busy machine a daemon's first answer takes 10, loading its classes
_LABELS = "/ws/v1/cluster"


def ask(port: int, path: str, body: Mapping[str, object] | None = None, method: str = "") -> Any:
    """The answer as JSON; None where nobody answers yet, or answers with an error or with something else."""
    status, text = _asked(port, path, body, method)
    try:
        return json.loads(text) if status == 200 else None
    except ValueError:
        return None


def tell(port: int, path: str, body: Mapping[str, object] | None = None, method: str = "POST") -> None:
    """The same where there must be success."""
    status, text = _asked(port, path, body, method, _DONE)
    if status not in (200, 201):
        raise EngineFailed(f"localhost:{port}{path} answered {status}: {text[:300]}", anchor="cluster-failed")


def _asked(
    port: int, path: str, body: Mapping[str, object] | None, method: str, patience: float = _PATIENCE
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("localhost", port, timeout=patience)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        given = json.dumps(body) if body is not None else None
        connection.request(method or ("GET" if body is None else "POST"), path, given, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()


def namenode_waits(port: int) -> str:
    """What the NameNode still lacks, "" where it serves and a DataNode lives."""
    found = ask(port, "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
    if not found or not found.get("beans"):
        return "the NameNode does not answer"
    state = found["beans"][0]
    if state.get("FSState") != "Operational":
        return f"the NameNode is in {state.get('FSState')}"
    return "" if state.get("NumLiveDataNodes", 0) >= 1 else "the NameNode knows no DataNode"


def nodes_active(port: int) -> int:
    """How many NodeManagers the ResourceManager has, -1 where it does not answer or is not the active one."""
    found = ask(port, "/ws/v1/cluster/metrics")
    return int(found["clusterMetrics"]["activeNodes"]) if found and "clusterMetrics" in found else -1


def is_active(port: int) -> bool:
    """Whether this ResourceManager is the one that serves."""
    found = ask(port, "/ws/v1/cluster/info")
    return bool(found) and found.get("clusterInfo", {}).get("haState") == "ACTIVE"


def set_labels(port: int, labels: Mapping[str, str]) -> None:
    """Make the labels and give them to nodes: node (`host:port`) -> label."""
    names = [{"name": name, "exclusivity": True} for name in sorted(set(labels.values()))]
    tell(port, f"{_LABELS}/add-node-labels", {"nodeLabelInfo": names})
    mapping = [{"nodeId": node, "labels": [label]} for node, label in labels.items()]
    tell(port, f"{_LABELS}/replace-node-to-labels", {"nodeToLabels": mapping})


def make_folders(port: int, user: str) -> None:
    """The directories that everybody expects in HDFS, made by its superuser over WebHDFS."""
    for folder, mode in (("/tmp", "1777"), ("/tmp/logs", "1777"), (f"/user/{user}", "755")):
        tell(port, f"/webhdfs/v1{folder}?op=MKDIRS&permission={mode}&user.name={user}", method="PUT")
