"""The promises that an engine makes of a container, and that its cluster may fail to keep without a word.

A cluster without a docker runtime runs a container on the host; one that counts GPUs may have none. `PROMISES` has a row for each promise
that only the container itself can check. The engine's container side compares what was asked for with what the container is, and puts each
broken promise into the spec of the agent (`broken`). A promise that `ends` ends the attempt before any program starts; any other one is
reported and shown with the job. Each engine's `check` and its `Submitted.warnings` cover the promises that its cluster can answer for
at submit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.plain import Plain

if TYPE_CHECKING:
    from trainmaster.core.spec.job import Job


@attrs.frozen(slots=True, eq=False, repr=False)
class Promise(Plain):
    """A promise about a container. `key`: the key of the job that asks for it. `ends`: a container without it ends at once."""

    key: str
    ends: bool
    mend: str


PROMISES = {
    "image": Promise(
        "roles.{role}.image or environment.image", True,
        "have the cluster's administrator allow docker (yarn.nodemanager.runtime.linux.allowed-runtimes), or leave the image out and use "
        "environment.archive",
    ),
    "mounts": Promise(
        "engines.yarn.mounts", True,
        "have the cluster's administrator allow them (docker.allowed.rw-mounts, docker.allowed.ro-mounts), or leave them out",
    ),
    "gpus": Promise("roles.{role}.resources.gpus", False, "see which devices the node has: nvidia-smi"),
}  # fmt: skip

Broken = tuple[str, str]  # a key of PROMISES, and what the container is instead


def broken_gpus(granted: int, devices: Sequence[str], node: str) -> list[Broken]:
    """Return the promise of GPUs, where the container was granted some and its agent sees fewer. Devices of NVIDIA alone are seen."""
    if len(devices) >= granted:
        return []
    seen = "none" if not devices else str(len(devices))
    return [("gpus", f"{granted} were granted on {node}, and {seen} of NVIDIA's can be seen there")]


def check_images(job: Job, engine: str) -> None:
    """Raise BadInput where the job names an image, and the engine runs none."""
    images = {"environment.image": job.environment.image}
    images |= {f"roles.{role.name}.image": role.image for role in job.roles.values()}
    if place := next((place for place, image in images.items() if image), ""):
        raise BadInput(
            f"the engine {engine} runs no images", place=f"{place}: {images[place]}",
            mend="use path, archive or requirements of environment:", anchor="environment",
        )  # fmt: skip
