"""Requests to a cluster's own web pages: they tell whether it is ready, and set its nodes' labels.

All requests go to this machine, so no proxy is ever in between.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any

from trainmaster.core.errors import EngineFailed

_PATIENCE = 5.0  # s an answer may take; without one the caller asks again
_CHANGE_PATIENCE = 60.0  # s a change may take: on a busy machine a daemon's first answer takes 10, loading its classes
_LABELS = "/ws/v1/cluster"


def ask(port: int, path: str, body: Mapping[str, object] | None = None, method: str = "") -> Any:
    """Return the answer to a request as JSON; None where there is no answer yet, or an error, or another format."""
    status, text = _request(port, path, body, method)
    try:
        return json.loads(text) if status == 200 else None
    except ValueError:
        return None


def tell(port: int, path: str, body: Mapping[str, object]) -> None:
    """Make a change by a request. Raises EngineFailed where it does not succeed."""
    status, text = _request(port, path, body, "POST", _CHANGE_PATIENCE)
    if status not in (200, 201):
        raise EngineFailed(f"localhost:{port}{path} answered {status}: {text[:300]}", anchor="cluster-failed")


def _request(
    port: int, path: str, body: Mapping[str, object] | None, method: str, patience: float = _PATIENCE
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("localhost", port, timeout=patience)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        content = json.dumps(body) if body is not None else None
        connection.request(method or ("GET" if body is None else "POST"), path, content, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()


def namenode_waits(port: int) -> str:
    """Return what the NameNode still lacks, "" where it serves and a DataNode lives."""
    answer = ask(port, "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
    if not answer or not answer.get("beans"):
        return "the NameNode does not answer"
    state = answer["beans"][0]
    if state.get("FSState") != "Operational":
        return f"the NameNode is in {state.get('FSState')}"
    return "" if state.get("NumLiveDataNodes", 0) >= 1 else "the NameNode knows no DataNode"


def nodes_active(port: int) -> int:
    """Return how many NodeManagers the ResourceManager has, -1 where it does not answer or is not the active one."""
    answer = ask(port, "/ws/v1/cluster/metrics")
    return int(answer["clusterMetrics"]["activeNodes"]) if answer and "clusterMetrics" in answer else -1


def is_active(port: int) -> bool:
    """Tell whether this ResourceManager is the one that serves."""
    answer = ask(port, "/ws/v1/cluster/info")
    return bool(answer) and answer.get("clusterInfo", {}).get("haState") == "ACTIVE"


def set_labels(port: int, labels: Mapping[str, str]) -> None:
    """Create the labels and give them to nodes. `labels`: node (`host:port`) -> label."""
    names = [{"name": name, "exclusivity": True} for name in sorted(set(labels.values()))]
    tell(port, f"{_LABELS}/add-node-labels", {"nodeLabelInfo": names})
    mapping = [{"nodeId": node, "labels": [label]} for node, label in labels.items()]
    tell(port, f"{_LABELS}/replace-node-to-labels", {"nodeToLabels": mapping})
