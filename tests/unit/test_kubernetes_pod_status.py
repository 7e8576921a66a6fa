"""What the kubernetes engine makes of a pod's status: its end, its loss, a warning. The pods are as a real cluster told them."""

from __future__ import annotations

from typing import Any

import pytest

from trainmaster.core.machine.reasons import REASONS, words
from trainmaster.engines.kubernetes.master import pod_status
from trainmaster.engines.kubernetes.master.pod_status import (
    DISRUPTIONS,
    STATUSES,
    cores,
    ended,
    essence,
    quantity,
    vanished,
    warning,
)
from trainmaster.engines.statuses import NO_PYTHON, OUT_OF_REACH

MIB = 2**20


def pod(
    phase: str = "Running", state: dict[str, Any] | None = None, init: dict[str, Any] | None = None,
    conditions: dict[str, tuple[str, str]] | None = None, deleting: int | None = None, **status: Any,
) -> dict[str, Any]:  # fmt: skip
    """`state` of our container, `init` of the one before it, `conditions`: type -> (status, reason), `deleting`: its grace."""
    about: dict[str, Any] = {"name": "digits-worker-0-1", "uid": "u1", "managedFields": ["much"]}
    if deleting is not None:
        about |= {"deletionTimestamp": "2024-01-01T00:00:00Z", "deletionGracePeriodSeconds": deleting}
    rows = [{"type": name, "status": is_so, "reason": why} for name, (is_so, why) in (conditions or {}).items()]
    made: dict[str, Any] = {"phase": phase, "conditions": rows, **status}
    if state is not None:
        made["containerStatuses"] = [{"name": "program", "state": state}]
    if init is not None:
        made["initContainerStatuses"] = [{"name": "runtime", "state": init}]
    limits = {"resources": {"limits": {"memory": "256Mi"}}}
    containers = [{"name": "program", "image": "debian:1", "command": ["much"], **limits}]
    spec = {"nodeName": "n1", "terminationGracePeriodSeconds": 30, "containers": containers, "volumes": ["much"]}
    return {"metadata": about, "spec": spec, "status": made}


def died(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


RUNS = {"running": {"startedAt": "2024-01-01T00:00:00Z"}}


def test_our_reasons_are_of_the_table() -> None:
    assert {*STATUSES.values(), *(reason for reason, _ in DISRUPTIONS.values())} <= REASONS.keys()


@pytest.mark.parametrize(
    "one", [pod("Pending"), pod(state=RUNS), pod("Pending", init=RUNS), pod(state=RUNS, deleting=30)]
)
def test_a_pod_that_may_run_has_not_ended(one: dict[str, Any]) -> None:
    assert ended(one) is None


ENDS = {
    "the agent's own status": (pod("Failed", died(3)), 3, None, {}),
    "ended well": (pod("Succeeded", died(0, "Completed")), 0, None, {}),
    "before the phase says so": (pod("Running", died(3)), 3, None, {}),
    "killed": (pod("Failed", died(137)), -9, None, {}),
    "out of memory": (pod("Failed", died(137, "OOMKilled")), -9, "out-of-memory", {"used": 256 * MIB, "limit": 256 * MIB}),
    "a process was, and its agent failed by that": (
        pod("Failed", died(1, "OOMKilled")), 1, "out-of-memory", {"used": 256 * MIB, "limit": 256 * MIB},
    ),
    "a process was, and then the pod was deleted": (
        pod("Failed", died(143, "OOMKilled"), deleting=30), 143, "killed-by-engine", {"detail": "its pod digits-worker-0-1 was deleted"},
    ),
    "a process was, its agent ended well": (pod("Succeeded", died(0, "OOMKilled")), 0, None, {}),
    "the agent met no master": (pod("Failed", died(OUT_OF_REACH)), OUT_OF_REACH, "no-master", {"node": "n1"}),
    "not started": (
        pod("Failed", died(128, "StartError", 'exec: "agnet": not found')), 128, "localization-failed",
        {"detail": 'exec: "agnet": not found'},
    ),
    "the agent found no Python": (pod("Failed", died(NO_PYTHON)), NO_PYTHON, "no-python", {"node": "n1, image debian:1"}),
    "the init container found no Python": (
        pod("Failed", {"waiting": {"reason": "PodInitializing"}}, died(NO_PYTHON, message="the image has no Python")),
        None, "no-python", {"node": "n1, image debian:1"},
    ),
    "the image has not even a shell": (
        pod("Failed", init=died(128, "StartError", 'exec: "sh": executable file not found in $PATH')), None, "no-python",
        {"node": "n1, image debian:1"},
    ),
    "the init container failed": (
        pod("Failed", init=died(1, message="Traceback\n  much\nOSError: no space\n")), None, "localization-failed",
        {"detail": "container runtime exited with 1: OSError: no space"},
    ),
    "evicted": (
        pod("Failed", died(137), reason="Evicted", message="The node was low on resource: memory."), -9, "killed-by-engine",
        {"detail": "The node was low on resource: memory"},
    ),
    "evicted for its own disk": (
        pod("Failed", died(137), reason="Evicted", message='Usage of EmptyDir volume "shm" exceeds the limit "1Mi".'), -9, "disk-full",
        {"detail": 'Usage of EmptyDir volume "shm" exceeds the limit "1Mi"'},
    ),
    "its deadline": (
        pod("Failed", died(143), reason="DeadlineExceeded", message="Pod was active on the node longer than the specified deadline"),
        143, "killed-by-engine", {"detail": "activeDeadlineSeconds, which its pod template sets, have passed"},
    ),
    "no room after all": (
        pod("Failed", reason="OutOfcpu", message="Node didn't have enough resource: cpu"), None, "localization-failed",
        {"detail": "node n1 had no room left: Node didn't have enough resource: cpu"},
    ),
    "preempted": (
        pod("Failed", died(143), conditions={"DisruptionTarget": ("True", "PreemptionByScheduler")}, deleting=30), 143, "preempted",
        {"by": "a pod of higher priority"},
    ),
    "by Kueue": (
        pod("Failed", died(143), conditions={"TerminationTarget": ("True", "StoppedByKueue")}, deleting=30), 143, "preempted",
        {"by": "other jobs of its queue"},
    ),
    "drained": (
        pod("Failed", died(143), conditions={"DisruptionTarget": ("True", "EvictionByEvictionAPI")}, deleting=30), 143, "killed-by-engine",
        {"detail": "it was evicted, as by a drain of its node"},
    ),
    "its node was started anew": (pod("Failed", died(137, "ContainerStatusUnknown")), -9, "node-lost", {}),
    "deleted by somebody": (
        pod("Failed", died(143), deleting=30), 143, "killed-by-engine", {"detail": "its pod digits-worker-0-1 was deleted"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_ends(name: str) -> None:
    one, status, reason, figures = ENDS[name]
    for seen in (one, essence(one)):
        end = ended(seen)
        assert end is not None
        assert (end.status, end.reason, end.figures, end.lost) == (status, reason, {"node": "n1", **figures}, False)
        if reason is not None:
            assert "[" not in words(reason, end.figures)


def test_what_we_deleted_ends_without_a_reason() -> None:
    end = ended(pod("Failed", died(143), deleting=30), by_us=True)
    assert end is not None
    assert (end.status, end.reason) == (143, None)
    young = ended(pod("Failed", died(137, "ContainerStatusUnknown"), deleting=5), by_us=True)
    assert young is not None
    assert young.reason is None


def test_a_pod_that_vanished_while_it_ran_may_run_on() -> None:
    """Its object was removed by force; the kubelet ends it within its grace."""
    end = vanished(pod(state=RUNS))
    assert (end.lost, end.reason) == (True, "killed-by-engine")
    assert end.figures["detail"] == "its pod digits-worker-0-1 was deleted"


def test_a_pod_that_vanished_before_it_began_has_ended() -> None:
    waits = pod("Pending")
    del waits["spec"]["nodeName"]
    assert (vanished(waits).lost, vanished(waits).reason) == (False, "killed-by-engine")


def test_a_pod_that_vanished_after_its_end_has_ended_so() -> None:
    assert vanished(pod("Failed", died(137, "OOMKilled"))).reason == "out-of-memory"
    assert (vanished(pod("Failed", died(143))).lost, vanished(pod("Failed", died(143))).reason) == (
        False,
        "killed-by-engine",
    )
    assert vanished(pod("Failed", died(143)), by_us=True).reason is None


def test_a_disruption_is_a_warning_before_the_deletion_and_after() -> None:
    marked = pod(state=RUNS, conditions={"DisruptionTarget": ("True", "PreemptionByScheduler")})
    assert warning(marked) == (30.0, "preempted", {"by": "a pod of higher priority"})
    detail = "its pod digits-worker-0-1 was deleted"
    assert warning(pod(state=RUNS, deleting=7)) == (7.0, "killed-by-engine", {"detail": detail})
    assert warning(pod(state=RUNS)) is None


def test_an_eviction_for_what_the_pod_itself_has_written_is_a_warning_of_a_full_disk() -> None:
    """The pod's own status, which says so too, is told once all of its containers have ended."""
    message = "Pod ephemeral local storage usage exceeds the total limit of containers 16Mi."
    evicted = pod(state=RUNS, conditions={"DisruptionTarget": ("True", "TerminationByKubelet")})
    evicted["status"]["conditions"][0]["message"] = message
    found = warning(evicted)
    assert found is not None
    assert found[1:] == ("disk-full", {"detail": message.rstrip(".")})


def test_a_pod_that_its_own_kubelet_calls_ready_is_not_ready_where_the_node_is_away() -> None:
    away = pod(state=RUNS, conditions={"Ready": ("False", ""), "ContainersReady": ("True", "")})
    unready = pod(state=RUNS, conditions={"Ready": ("False", ""), "ContainersReady": ("False", "")})
    assert (
        pod_status.out_of_reach(away),
        pod_status.out_of_reach(unready),
        pod_status.out_of_reach(pod(state=RUNS)),
    ) == (
        True,
        False,
        False,
    )


def test_only_what_is_looked_at_is_kept() -> None:
    assert "much" not in str(essence(pod("Failed", died(1))))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("256Mi", 256 * MIB),
        ("2G", 2 * 10**9),
        ("1.5Gi", 1536 * MIB),
        ("1e3", 1000),
        ("128974848", 128974848),
        ("1500m", 1),
        ("", 0),
        ("x", 0),
    ],
)
def test_quantities(text: str, number: int) -> None:
    assert quantity(text) == number


def test_cores() -> None:
    assert [cores(one) for one in ("500m", "2", "1.5", 3, "")] == [0.5, 2, 1.5, 3, 0]
