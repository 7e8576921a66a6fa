"""Requests to a cluster's own web pages, which tell whether it is ready.

All requests go to this machine, so no proxy is ever in between.
"""

from __future__ import annotations

import http.client
import json
import ssl
from pathlib import Path
from typing import Any

from trainmaster.clusters.hadoop import tls

_PATIENCE = 5.0  # s an answer may take; without one the caller asks again


def ask(port: int, path: str, context: ssl.SSLContext | None = None) -> Any:
    """Return the answer to a request as JSON; None where there is no answer yet, or an error, or another format. `context`: for HTTPS."""
    connection = (
        http.client.HTTPSConnection("localhost", port, timeout=_PATIENCE, context=context)
        if context
        else http.client.HTTPConnection("localhost", port, timeout=_PATIENCE)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return json.loads(answer.read()) if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def namenode_waits(port: int, conf: Path) -> str:
    """Return what the NameNode still lacks, "" where it serves and a DataNode lives."""
    answer = ask(port, "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState", tls.context(conf))
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
