"""The spec that the agent of a container gets at its start on any engine (see `agent.main`); the master's host adds more to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.core.containers import Request
from trainmaster.core.spec.job import Input, Job, uses
from trainmaster.engines.contract import Capabilities


def spec_of(
    job_id: str, job: Job, site: Mapping[str, Any], storage: str, request: Request, devices: Sequence[str], capabilities: Capabilities
) -> dict[str, Any]:  # fmt: skip
    """Return the spec of one container's agent. `storage`: the job's own place; `site`: facts from submit (see `master.orders`)."""
    return {
        "job_id": job_id, "task": request.task, "serial": request.serial, "devices": list(devices), "gpus": request.gpus,
        "storage": storage,
        "grace": job.timeouts.grace, "patience": job.timeouts.storage, "log_limit": job.logs.limit, "log_first": job.logs.first,
        "log_every": job.logs.every, "log_piece": job.logs.piece, "cwd": site.get("cwd"), "environment": site.get("environment"),
        "on_this_machine": capabilities.on_this_machine, "own_network": capabilities.own_network,
        "memory_limit": capabilities.memory_limit, "network": job.network.interface, "transport": job.network.transport,
        "programs_open_stores": any(map(_opened_by_programs, uses(job, request.role))),
    }  # fmt: skip


def _opened_by_programs(source: Input) -> bool:
    """Tell whether programs read an input themselves, and from an object store."""
    return source.as_ == "shards" and any(
        "://" in url and not url.startswith(("file:", "hdfs:", "records:", "viewfs:")) for url in source.urls
    )
