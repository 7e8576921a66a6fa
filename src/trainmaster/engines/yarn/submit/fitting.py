"""What a cluster of YARN can never give: found at submit, with what was asked, the most there is, and the key to change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job
from trainmaster.engines.contract import Request
from trainmaster.engines.yarn.master.asks import GPU, MIB, label_of, resource
from trainmaster.engines.yarn.master.nodes import excluded
from trainmaster.engines.yarn.master.waiting import amount, count, extended, request_amount
from trainmaster.engines.yarn.settings import PLACE, Settings
from trainmaster.hadoop.conf import Configuration
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.yarn import ResourceManager

ALL = "*"  # among the labels that a queue may use
_OURS = ("memory-mb", "vcores", GPU)


async def check(
    manager: ResourceManager, job: Job, requests: Sequence[Request], queue: y.QueueInfoProto, label: str,
    most: y.ResourceProto,
) -> None:  # fmt: skip
    """Raises BadInput. `label`: of containers whose role names none; `most`: the largest container that the scheduler gives."""
    nodes, types, labels = await asyncio.gather(
        manager.get_cluster_nodes(y.GetClusterNodesRequestProto(nodeStates=[y.NS_RUNNING])),
        manager.get_resource_type_info(y.GetAllResourceTypeInfoRequestProto()),
        manager.get_cluster_node_labels(y.GetClusterNodeLabelsRequestProto()),
    )
    known = [one.name for one in types.resource_type_info]
    there = [one.name for one in labels.nodeLabels] or list(labels.deprecatedNodeLabels)
    if label:
        _check_label(label, there, queue, f"{PLACE}.label: {label}")
    for place, request in [("master", _of_master(job)), *((f"roles.{one.role}", one) for one in requests)]:
        named = label_of(request.nodes.get("labels") or {})
        if named:
            _check_label(named, there, queue, f"{place}.nodes.labels.label: {named}")
        _check_names(place, request, known)
        _check_size(place, request, [one.capability for one in nodes.nodeReports], most)
    _check_excluded(job)


def _of_master(job: Job) -> Request:
    size, labels = job.master.resources, job.master.nodes.labels
    return Request("master", 0, "the master", 0, size.memory, size.cores, nodes={"labels": labels})


def check_tags(tags: Sequence[str], conf: Configuration) -> None:
    """Raises BadInput for what the ResourceManager takes no application with."""
    most = conf.integer("yarn.resourcemanager.application.max-tags", 10)
    longest = conf.integer("yarn.resourcemanager.application.max-tag.length", 100)
    for place, tag in enumerate(tags):
        if not tag or not tag.isascii() or len(tag) > longest:
            raise BadInput(
                f"{PLACE}.tags[{place}]: {tag!r} is no tag of YARN",
                place=f"{PLACE}.tags[{place}]", mend=f"write up to {longest} characters of ASCII", anchor="engine-settings",
            )  # fmt: skip
    if len(tags) >= most:
        raise BadInput(
            f"{PLACE}.tags: {len(tags)} of them, and YARN takes {most}, of which one is ours",
            place=f"{PLACE}.tags", mend=f"leave {most - 1} of them", anchor="engine-settings",
        )  # fmt: skip


def check_images(job: Job, said: Settings) -> None:
    """Raises BadInput for what only containers with an image have, where there is none."""
    imaged = job.environment.image or any(role.image for role in job.roles.values())
    for key in () if imaged else ("mounts", "network"):
        if getattr(said, key):
            raise BadInput(
                f"{PLACE}.{key}: nothing of the job has an image, so it has no effect",
                place=f"{PLACE}.{key}", mend="name one by environment.image, or leave it out", anchor="engine-settings",
            )  # fmt: skip


def _check_label(label: str, there: Sequence[str], queue: y.QueueInfoProto, place: str) -> None:
    if label not in there:
        has = f"it has {', '.join(sorted(there))}" if there else "it has none"
        raise BadInput(
            f"the cluster has no node label {label}; {has}",
            place=place,
            mend="see tm cluster show --engine yarn",
            anchor="labels",
        )
    if not {label, ALL} & set(queue.accessibleNodeLabels):
        raise BadInput(
            f"queue {queue.queueName} may not use nodes with the label {label}", place=place,
            mend="choose another queue: tm cluster show --engine yarn", anchor="labels",
        )  # fmt: skip


def _check_names(of: str, request: Request, known: Sequence[str]) -> None:
    for name in request.extended:
        place = f"{of}.resources.extended.{name}"
        if name in _OURS:
            key = {"memory-mb": "memory", "vcores": "cores", GPU: "gpus"}[name]
            raise BadInput(
                f"{name} has a key of its own",
                place=place,
                mend=f"write resources: {{{key}: ..}}",
                anchor="larger-than-the-cluster",
            )
        if name not in known:
            others = [one for one in known if one not in _OURS]
            has = f"it counts {', '.join(others)}" if others else "it counts none but memory and cores"
            raise BadInput(
                f"the cluster has no resource {name}; {has}",
                place=place,
                mend="see tm cluster show --engine yarn",
                anchor="larger-than-the-cluster",
            )


def _check_size(of: str, request: Request, nodes: Sequence[y.ResourceProto], most: y.ResourceProto) -> None:
    """The largest container, and of what is counted the most that a node has now; while no node is there, nothing is known of that."""
    wanted = resource(request.memory, request.cores, request.gpus)
    counted = {name: max((count(node, name) for node in nodes), default=1 << 62) for name in (GPU, *request.extended)}
    over = {
        "memory": wanted.memory > most.memory,
        "cores": wanted.virtual_cores > most.virtual_cores,
        "gpus": request.gpus > counted[GPU],
        **{
            f"extended.{name}": number > min(counted[name], count(most, name))
            for name, number in request.extended.items()
        },
    }
    if key := next((name for name, more in over.items() if more), ""):
        largest = {name: min(counted[name], number) for name, number in extended(most).items() if name in counted}
        gpus = counted[GPU] if nodes else 0
        raise BadInput(
            f"{request.role} needs {request_amount(request)} and the cluster grants at most "
            f"{amount(most.memory * MIB, most.virtual_cores, gpus, largest)} to one container",
            place=f"{of}.resources.{key}", mend="ask for less; see tm cluster show --engine yarn",
            anchor="larger-than-the-cluster",
        )  # fmt: skip


def _check_excluded(job: Job) -> None:
    """YARN leaves out a node for all of an application or for none of it."""
    common = excluded(job)
    for name, role in job.roles.items():
        if alone := sorted(set(role.nodes.exclude) - common):
            raise BadInput(
                f"{alone[0]} is excluded by {name} and not by every role: YARN knows exclusions of a whole job alone",
                place=f"roles.{name}.nodes.exclude: {alone[0]}", mend="name it in every role, or use a node label", anchor="labels",
            )  # fmt: skip
