"""Learn from the ReplicaSet and pods of a job's master what it waits for, and whether it will ever run.

Kubernetes tries for ever what cannot be: an init container that finds no Python, an image that nobody has. Where no master of the job has
run yet, that is the job's end, for the user can mend it and submit again; where one has, it is a matter of a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainmaster.engines.kubernetes.master import pod_status, waiting
from trainmaster.engines.kubernetes.master.pod_status import Figures, Pod
from trainmaster.engines.kubernetes.names import MASTER_PART, selector
from trainmaster.engines.kubernetes.submit import objects
from trainmaster.kube.client import Client
from trainmaster.kube.errors import Forbidden, KubeError
from trainmaster.kube.kinds import EVENTS, PODS

SOON = 60.0  # s; a master that ran for longer has not failed by the same again
UNASKED = "its master is not asked for yet: it is being submitted, or that was broken off (tm kill --force ends it)"
MOST = 6  # restarts of a master in its pod, some minutes with Kubernetes' pauses, after which it is given up


async def pods(client: Client, job_id: str) -> list[dict[str, Any]]:
    """Return the pods of the job's master, the newest last."""
    rows, _ = await client.list(PODS, labels=selector(job_id, MASTER_PART))
    return sorted(rows, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def hopeless(master_pods: Sequence[Pod], now: datetime) -> tuple[str, Figures] | None:
    """Return why no master of a job will ever run on, as a reason with figures: the first one cannot, or one fails again and again."""
    return never(master_pods, now) or next((why for pod in master_pods if (why := _failing(pod))), None)


def _failing(pod: Pod) -> tuple[str, Figures] | None:
    for row in (pod.get("status") or {}).get("containerStatuses") or ():
        last_end = (row.get("lastState") or {}).get("terminated")
        is_crash_looping = row.get("restartCount", 0) >= MOST and "waiting" in (row.get("state") or {})
        if last_end and is_crash_looping and _run_time(last_end) < SOON:
            if last_end.get("reason") == "OOMKilled":
                limit = (pod["spec"]["containers"][0].get("resources") or {}).get("limits", {}).get("memory", 0)
                return "out-of-memory", {"used": pod_status.quantity(limit), "limit": pod_status.quantity(limit)}
            lines = str(last_end.get("message") or "").strip().splitlines()
            return "master-failed", {"masters": row["restartCount"] + 1, "detail": lines[-1][:300] if lines else ""}
    return None


def _run_time(ended_state: Mapping[str, Any]) -> float:
    """Return the seconds from a container's start to its end."""
    began, ended = ended_state.get("startedAt"), ended_state.get("finishedAt")
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds() if began and ended else 0.0


def never(master_pods: Sequence[Pod], now: datetime) -> tuple[str, Figures] | None:
    """Return why the first master of a job will never run, as a reason with figures; None where it may, or has run."""
    if len(master_pods) != 1 or any(pod_status.started(pod) or _restarted(pod) for pod in master_pods):
        return None
    [pod] = master_pods
    if (end := pod_status.preparation(_as_last(pod))) is not None and end[0] == "no-python":
        return end
    age = (now - objects.created_at(pod)).total_seconds()
    trouble = waiting.of_pod(pod_status.essence(pod), age)
    if trouble is None or trouble.hopeless is None or age < trouble.hopeless:
        return None
    return "refused", {"task": "its master", "detail": trouble.detail}


async def waiting_reason(client: Client, replica_set: Mapping[str, Any] | None, master_pods: Sequence[Pod]) -> str:
    """Say what a master that does not answer waits for, in a line for people."""
    if replica_set is None:
        return UNASKED
    if not master_pods:
        refused = [event for event in await _events(client, replica_set) if event.get("reason") == "FailedCreate"]
        if not refused:
            return "its master's pod is being made"
        message = " ".join(str(refused[-1].get("message") or "").split()).removeprefix("Error creating: ")
        return f"its master's pod is not made: {message[:300]}"
    newest = master_pods[-1]
    trouble = waiting.of_pod(pod_status.essence(newest), waiting.SLOW)
    slow = (
        pod_status.node_of(newest)
        and not pod_status.started(newest)
        and (datetime.now(UTC) - objects.created_at(newest)).total_seconds() > waiting.SLOW
    )
    if trouble is None and slow:
        trouble = waiting.of_events(newest, await _events(client, newest))
    if trouble is None:
        phase = str(newest["status"].get("phase") or "made").lower()
        last_line = await _last_line(client, newest) if pod_status.started(newest) else ""
        silent = f"its master's pod {newest['metadata']['name']} is {phase}, and does not answer yet"
        return f"{silent}: {last_line}" if last_line else silent
    return f"its master's pod waits: {trouble.detail}"


async def _last_line(client: Client, pod: Pod) -> str:
    """Return the last line of a master's log, which is silent as long as all is well; "" where nobody may read it."""
    try:
        log = (await client.log(pod["metadata"]["name"])).decode(errors="replace")
    except KubeError:
        return ""
    lines = [
        line for line in log.splitlines() if line.strip() and not line.startswith(" ")
    ]  # an error's message, without its traceback
    return lines[-1].removeprefix("error: ")[:300] if lines else ""


async def _events(client: Client, manifest: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the events of an object, the newest last."""
    if manifest is None:
        return []
    try:
        events, _ = await client.list(EVENTS, fields=f"involvedObject.uid={manifest['metadata']['uid']}")
    except Forbidden:
        return []
    return sorted(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))


def _as_last(pod: Pod) -> Pod:
    """Return the pod with each init container that is tried again as it last ended."""
    status = pod.get("status") or {}
    rows = [
        {**row, "state": row.get("lastState") or {}} if "waiting" in (row.get("state") or {}) else row
        for row in status.get("initContainerStatuses") or ()
    ]
    return {**pod, "status": {**status, "initContainerStatuses": rows}}


def _restarted(pod: Pod) -> bool:
    rows = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(row.get("restartCount") for row in rows)
