"""What the agent of a container on any engine is given at its start (see `agent.main`), beside what its seat adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.core.spec.job import Input, Job, uses
from trainmaster.engines.contract import Capabilities, Request


def spec_of(
    job_id: str, job: Job, site: Mapping[str, Any], storage: str, request: Request, devices: Sequence[str], capabilities: Capabilities
) -> dict[str, Any]:  # fmt: skip
    """`storage`: the job's own place; `site`: what submit found out (see `master.orders`)."""
    return {
        "job_id": job_id, "task": request.task, "serial": request.serial, "devices": list(devices), "storage": storage,
        "grace": job.timeouts.grace, "patience": job.timeouts.storage, "log_limit": job.logs.limit, "log_first": job.logs.first,
        "log_every": job.logs.every, "log_piece": job.logs.piece, "cwd": site.get("cwd"), "environment": site.get("environment"),
        "on_this_machine": capabilities.on_this_machine, "own_network": capabilities.own_network,
        "memory_limit": capabilities.memory_limit, "network": job.network,
        "programs_open_stores": any(map(_opened_by_programs, uses(job, request.role))),
    }  # fmt: skip


def _opened_by_programs(given: Input) -> bool:
    """Whether programs read an input themselves, and on an object store."""
    return given.as_ == "shards" and "://" in given.url and not given.url.startswith(("file:", "hdfs:", "viewfs:"))
