"""Refuse at submit what a cluster of YARN can never give, with what was asked, the most there is, and the key to change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from trainmaster.core.containers import Request
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job
from trainmaster.engines.yarn.master.asks import GPU, MIB, label_of, resource
from trainmaster.engines.yarn.master.nodes import excluded
from trainmaster.engines.yarn.master.waiting import amount, count, extended, request_amount
from trainmaster.engines.yarn.settings import PLACE, Settings
from trainmaster.hadoop.conf import Configuration
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.yarn import ResourceManager

ALL = "*"  # in a queue's list of labels: it may use every label
_OURS = ("memory-mb", "vcores", GPU)


async def check(
    manager: ResourceManager, job: Job, requests: Sequence[Request], queue: y.QueueInfoProto, label: str,
    most: y.ResourceProto,
) -> None:  # fmt: skip
    """Raise BadInput where the cluster can never grant a container of the job. `label`: for containers whose role names none; `most`: the
    largest container that the scheduler gives.
    """
    nodes, types, labels = await asyncio.gather(
        manager.get_cluster_nodes(y.GetClusterNodesRequestProto(nodeStates=[y.NS_RUNNING])),
        manager.get_resource_type_info(y.GetAllResourceTypeInfoRequestProto()),
        manager.get_cluster_node_labels(y.GetClusterNodeLabelsRequestProto()),
    )
    resource_types = [kind.name for kind in types.resource_type_info]
    cluster_labels = [node_label.name for node_label in labels.nodeLabels] or list(labels.deprecatedNodeLabels)
    if label:
        _check_label(label, cluster_labels, queue, f"{PLACE}.label: {label}")
    for place, request in [
        ("master", _master_request(job)),
        *((f"roles.{role_request.role}", role_request) for role_request in requests),
    ]:
        role_label = label_of(request.nodes.get("labels") or {})
        if role_label:
            _check_label(role_label, cluster_labels, queue, f"{place}.nodes.labels.label: {role_label}")
        _check_names(place, request, resource_types)
        _check_size(place, request, [node.capability for node in nodes.nodeReports], most)
    _check_excluded(job)


def _master_request(job: Job) -> Request:
    size, labels = job.master.resources, job.master.nodes.labels
    return Request("master", 0, "the master", 0, size.program_memory, size.cores, nodes={"labels": labels})


def check_tags(tags: Sequence[str], conf: Configuration) -> None:
    """Raise BadInput for tags with which the ResourceManager refuses an application."""
    most = conf.integer("yarn.resourcemanager.application.max-tags", 10)
    longest = conf.integer("yarn.resourcemanager.application.max-tag.length", 100)
    for place, tag in enumerate(tags):
        if not tag or not tag.isascii() or len(tag) > longest:
            raise BadInput(
                f"{PLACE}.tags[{place}]: {tag!r} is not a tag of YARN",
                place=f"{PLACE}.tags[{place}]", mend=f"write up to {longest} characters of ASCII", anchor="engine-settings",
            )  # fmt: skip
    if len(tags) >= most:
        raise BadInput(
            f"{PLACE}.tags: {len(tags)} of them, and YARN takes {most}, including one of ours",
            place=f"{PLACE}.tags", mend=f"leave {most - 1} of them", anchor="engine-settings",
        )  # fmt: skip


def check_images(job: Job, options: Settings) -> None:
    """Raise BadInput for settings that only containers with an image have, where the job has no image."""
    has_image = job.environment.image or any(role.image for role in job.roles.values())
    for key in () if has_image else ("mounts", "network", "runtime"):
        if getattr(options, key):
            raise BadInput(
                f"{PLACE}.{key}: nothing of the job has an image, so it has no effect",
                place=f"{PLACE}.{key}", mend="name one by environment.image, or leave it out", anchor="engine-settings",
            )  # fmt: skip


def _check_label(label: str, cluster_labels: Sequence[str], queue: y.QueueInfoProto, place: str) -> None:
    if label not in cluster_labels:
        choice = f"it has {', '.join(sorted(cluster_labels))}" if cluster_labels else "it has none"
        raise BadInput(
            f"the cluster has no node label {label}; {choice}",
            place=place,
            mend="see tm cluster show --engine yarn",
            anchor="labels",
        )
    if not {label, ALL} & set(queue.accessibleNodeLabels):
        raise BadInput(
            f"queue {queue.queueName} may not use nodes with the label {label}", place=place,
            mend="choose another queue: tm cluster show --engine yarn", anchor="labels",
        )  # fmt: skip


def _check_names(section: str, request: Request, resource_types: Sequence[str]) -> None:
    for name in request.extended:
        place = f"{section}.resources.extended.{name}"
        if name in _OURS:
            key = {"memory-mb": "memory", "vcores": "cores", GPU: "gpus"}[name]
            raise BadInput(
                f"{name} has a key of its own",
                place=place,
                mend=f"write resources: {{{key}: ..}}",
                anchor="larger-than-the-cluster",
            )
        if name not in resource_types:
            others = [kind for kind in resource_types if kind not in _OURS]
            choice = f"it counts {', '.join(others)}" if others else "it counts none but memory and cores"
            raise BadInput(
                f"the cluster has no resource {name}; {choice}",
                place=place,
                mend="see tm cluster show --engine yarn",
                anchor="larger-than-the-cluster",
            )


def _check_size(section: str, request: Request, nodes: Sequence[y.ResourceProto], most: y.ResourceProto) -> None:
    """Raise BadInput for a request that is larger than the largest container, or that asks for more of a counted resource than any node has
    now. While there are no nodes, nothing is known of counted resources.
    """
    size = resource(request.memory, request.cores, request.gpus)
    counted = {name: max((count(node, name) for node in nodes), default=1 << 62) for name in (GPU, *request.extended)}
    over = {
        "memory": size.memory > most.memory,
        "cores": size.virtual_cores > most.virtual_cores,
        "gpus": request.gpus > counted[GPU],
        **{
            f"extended.{name}": number > min(counted[name], count(most, name))
            for name, number in request.extended.items()
        },
    }
    if key := next((name for name, is_over in over.items() if is_over), ""):
        largest = {name: min(counted[name], number) for name, number in extended(most).items() if name in counted}
        gpus = counted[GPU] if nodes else 0
        raise BadInput(
            f"{request.role} needs {request_amount(request)} and the cluster grants at most "
            f"{amount(most.memory * MIB, most.virtual_cores, gpus, largest)} to one container",
            place=f"{section}.resources.{key}", mend="ask for less; see tm cluster show --engine yarn",
            anchor="larger-than-the-cluster",
        )  # fmt: skip


def _check_excluded(job: Job) -> None:
    """Raise BadInput for a node that only some roles exclude: YARN leaves out a node for a whole application or not at all."""
    common = excluded(job)
    for name, role in job.roles.items():
        if partial := sorted(set(role.nodes.exclude) - common):
            raise BadInput(
                f"{partial[0]} is excluded by {name} and not by every role: YARN knows exclusions of a whole job alone",
                place=f"roles.{name}.nodes.exclude: {partial[0]}", mend="name it in every role, or use a node label", anchor="labels",
            )  # fmt: skip
