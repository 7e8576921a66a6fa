"""The GPUs of a role that runs a program for each of them (`processes: gpu`) and does not say how many: all of this machine's."""

from __future__ import annotations

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job, Role
from trainmaster.core.spec.shapes import PER_GPU


def with_gpus(job: Job, on_this_machine: bool) -> Job:
    """Return the job with a number of GPUs for each role that needs one. Raises BadInput where no number is known."""
    unsized = [role for role in job.roles.values() if role.processes == PER_GPU and not role.resources.gpus]
    if not unsized:
        return job
    if not on_this_machine:
        raise _refused(unsized[0], "does not say how many it has", "say how many: {key}.resources.gpus (--gpus)")
    from trainmaster.host.machine import accelerators

    devices, _ = accelerators()
    if not devices:
        raise _refused(unsized[0], "this machine has none", "say how many programs: {key}.processes: 2 (--processes)")
    if len(unsized) > 1 or unsized[0].replicas.least > 1:
        raise _refused(
            unsized[0],
            "several containers would share this machine's",
            "say how many each has: {key}.resources.gpus (--gpus)",
        )
    sized = {
        role.name: attrs.evolve(role, resources=attrs.evolve(role.resources, gpus=len(devices))) for role in unsized
    }
    return attrs.evolve(job, roles={**job.roles, **sized})


def _refused(role: Role, why: str, mend: str) -> BadInput:
    key = f"roles.{role.name}"
    return BadInput(
        f"role {role.name} runs a program for each GPU, and {why}", place=f"{key}.processes: {PER_GPU}", mend=mend.format(key=key),
        anchor="no-gpu",
    )  # fmt: skip
