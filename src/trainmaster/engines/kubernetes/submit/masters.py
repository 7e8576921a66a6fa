"""A job's master as its ReplicaSet and pods tell of it: what it waits for, and whether it will ever run.

Kubernetes tries for ever what cannot be: an init container that finds no Python, an image that nobody has. Where no master of the job has
run yet, that is the job's end, for the user can mend it and submit again; where one has, it is a matter of a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trainmaster.engines.kubernetes.master import pod_status as ends
from trainmaster.engines.kubernetes.master import waiting
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
    """Those of the job's master, the newest last."""
    found, _ = await client.list(PODS, labels=selector(job_id, MASTER_PART))
    return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def hopeless(made: Sequence[Pod], now: datetime) -> tuple[str, Figures] | None:
    """Why no master of a job will ever run on, as a reason with figures: the first one cannot, or one fails again and again."""
    return never(made, now) or next((why for pod in made if (why := _failing(pod))), None)


def _failing(pod: Pod) -> tuple[str, Figures] | None:
    for row in (pod.get("status") or {}).get("containerStatuses") or ():
        over = (row.get("lastState") or {}).get("terminated")
        again = row.get("restartCount", 0) >= MOST and "waiting" in (row.get("state") or {})
        if over and again and _ran(over) < SOON:
            if over.get("reason") == "OOMKilled":
                limit = (pod["spec"]["containers"][0].get("resources") or {}).get("limits", {}).get("memory", 0)
                return "out-of-memory", {"used": ends.quantity(limit), "limit": ends.quantity(limit)}
            last = str(over.get("message") or "").strip().splitlines()
            return "master-failed", {"masters": row["restartCount"] + 1, "detail": last[-1][:300] if last else ""}
    return None


def _ran(over: Mapping[str, Any]) -> float:
    """Seconds from a container's start to its end."""
    began, ended = over.get("startedAt"), over.get("finishedAt")
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds() if began and ended else 0.0


def never(made: Sequence[Pod], now: datetime) -> tuple[str, Figures] | None:
    """Why the first master of a job will never run, as a reason with figures; None where it may, or has run."""
    if len(made) != 1 or any(ends.started(pod) or _restarted(pod) for pod in made):
        return None
    [pod] = made
    if (end := ends.preparation(_as_last(pod))) is not None and end[0] == "no-python":
        return end
    age = (now - objects.made(pod)).total_seconds()
    trouble = waiting.of_pod(ends.essence(pod), age)
    if trouble is None or trouble.hopeless is None or age < trouble.hopeless:
        return None
    return "refused", {"task": "its master", "detail": trouble.detail}


async def waits(client: Client, job: Mapping[str, Any] | None, made: Sequence[Pod]) -> str:
    """What a master is waited for that does not answer: `job` is its ReplicaSet, `made` its pods."""
    if job is None:
        return UNASKED
    if not made:
        refused = [one for one in await _events(client, job) if one.get("reason") == "FailedCreate"]
        if not refused:
            return "its master's pod is being made"
        message = " ".join(str(refused[-1].get("message") or "").split()).removeprefix("Error creating: ")
        return f"its master's pod is not made: {message[:300]}"
    newest = made[-1]
    trouble = waiting.of_pod(ends.essence(newest), waiting.SLOW)
    slow = (
        ends.node_of(newest)
        and not ends.started(newest)
        and (datetime.now(UTC) - objects.made(newest)).total_seconds() > waiting.SLOW
    )
    if trouble is None and slow:
        trouble = waiting.of_events(newest, await _events(client, newest))
    if trouble is None:
        phase = str(newest["status"].get("phase") or "made").lower()
        said = await _last_line(client, newest) if ends.started(newest) else ""
        silent = f"its master's pod {newest['metadata']['name']} is {phase}, and does not answer yet"
        return f"{silent}: {said}" if said else silent
    return f"its master's pod waits: {trouble.detail}"


async def _last_line(client: Client, pod: Pod) -> str:
    """What a master has said last, which is silent as long as all is well; "" where nobody may know."""
    try:
        told = (await client.log(pod["metadata"]["name"])).decode(errors="replace")
    except KubeError:
        return ""
    said = [line for line in told.splitlines() if line.strip() and not line.startswith(" ")]  # of an error its message
    return said[-1].removeprefix("error: ")[:300] if said else ""


async def _events(client: Client, thing: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What was told of an object, the newest last."""
    if thing is None:
        return []
    try:
        found, _ = await client.list(EVENTS, fields=f"involvedObject.uid={thing['metadata']['uid']}")
    except Forbidden:
        return []
    return sorted(found, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))


def _as_last(pod: Pod) -> Pod:
    """The pod with each init container that is tried again as it last ended."""
    status = pod.get("status") or {}
    rows = [
        {**row, "state": row.get("lastState") or {}} if "waiting" in (row.get("state") or {}) else row
        for row in status.get("initContainerStatuses") or ()
    ]
    return {**pod, "status": {**status, "initContainerStatuses": rows}}


def _restarted(pod: Pod) -> bool:
    rows = (pod.get("status") or {}).get("containerStatuses") or ()
    return any(row.get("restartCount") for row in rows)
