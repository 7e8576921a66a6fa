"""The reason for a container's end on Spark, out of the words in which Spark tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainmaster.core.containers import End
from trainmaster.core.machine.stimuli import ContainerExited, ContainerLost
from trainmaster.engines.statuses import REASONS

# The words of an executor's loss -> our reason; the first that is found. They are of Spark's ExecutorLossReason, and of its backends for
# standalone, YARN and Kubernetes. An executor's JVM exits with 52 where its heap is full (SparkExitCode.OOM).
_LOSSES = (
    (
        r"OOMKilled|[Ee]xceeding (physical |virtual )?memory|exceeding memory limits|OutOfMemory|(code|status):? 52\b",
        "out-of-memory",
    ),
    (r"[Dd]ecommission|[Pp]reempted", "preempted"),
    (
        r"[Ww]orker (was )?lost|worker .*(lost|removed)|heartbeat timed out|[Nn]ode .*(lost|unusable|removed)|deleted node|\*lost\* node",
        "node-lost",
    ),
)
_KILLED = re.compile(r"(code|status):? 137\b")
_NOISE = re.compile(
    r"Container from a bad node: \S+ on host: \S+ |\[\d{4}-\d\d-\d\d [\d:.]+\]"
)  # YARN's, of any container that fails
_WORKER_LOST = re.compile(r"cancell?ed|killed|Python worker exited unexpectedly|Socket closed")
_WORKER_DIED = "Python worker exited unexpectedly"
# The error of a task whose Python worker Spark itself has ended, by closing its end of the connection. A task can get a worker while Spark
# is still ending that worker's former task, which was cancelled (SPARK-54217). Spark 4 has channels.
_SOCKET_CLOSED = "Socket closed"
_CHANNEL_CLOSED = ("java.nio.channels.AsynchronousCloseException", "java.nio.channels.ClosedChannelException")
NO_MEMORY = "SIGKILL: by the kernel where memory runs out, else by somebody"


def end_of(task: str, serial: int, message: Mapping[str, Any], is_released: bool) -> End:
    """Return what became of a container, of its end as the bridge tells it."""
    if (status := message.get("status")) is not None:
        return ContainerExited(task, serial, status, REASONS.get(status))
    if is_released:
        return ContainerExited(task, serial, None, "not-needed")
    event = message.get("event")
    if event is None and _WORKER_LOST.search(message["error"]):  # Spark's event of the task follows seconds later
        return ContainerLost(task, serial, "killed-by-engine", {"detail": message["error"]})
    if event is None:
        return ContainerExited(task, serial, None, "localization-failed", {"detail": message["error"]})
    why, info = event["Task End Reason"], event["Task Info"]
    if why["Reason"] == "ExecutorLostFailure":
        reason, figures = loss_of(why["Executor ID"], info["Host"], why.get("Loss Reason") or "Spark does not say why")
        return ContainerLost(task, serial, reason, figures)
    if why["Reason"] == "TaskKilled":
        detail = f"Spark's task was killed: {why.get('Kill Reason')}"
        return ContainerLost(task, serial, "killed-by-engine", {"detail": detail})
    detail = without_stack(why.get("Description") or why["Reason"])
    if _WORKER_DIED in detail:  # the agent's parent
        return ContainerLost(task, serial, "killed-by-engine", {"detail": f"{detail}, on {info['Host']} ({NO_MEMORY})"})
    if detail == _SOCKET_CLOSED or why.get("Class Name") in _CHANNEL_CLOSED:
        detail = f"Spark ended the task's Python worker, on {info['Host']}: {detail}"
        return ContainerLost(task, serial, "killed-by-engine", {"detail": detail})
    return ContainerExited(task, serial, None, "localization-failed", {"detail": detail, "node": info["Host"]})


def without_stack(text: str) -> str:
    """Return the words of an error in Python without its stack, in one line."""
    lines = text.strip().splitlines()
    if lines[0].startswith("Traceback "):
        lines = [line for line in lines[1:] if not line.startswith(" ")]
    return " ".join(lines)


def loss_of(executor: str, host: str, words: str) -> tuple[str, dict[str, Any]]:
    """Return the reason, and its figures, for the loss of an executor."""
    words = " ".join(_NOISE.sub("", words).split())
    reason = next((reason for pattern, reason in _LOSSES if re.search(pattern, words)), "killed-by-engine")
    if _KILLED.search(words) and reason == "killed-by-engine":
        words = f"{words} ({NO_MEMORY})"
    detail = f"executor {executor} on {host} was lost: {words}"
    return reason, {"detail": detail, **({"by": f"Spark: {detail}"} if reason == "preempted" else {})}
