"""Check whether this machine is ready for jobs: each check reports a finding and, where that is in the way, what to do.

A finding is bad where no job can run. Trouble with a cluster is a warning: jobs on this machine run without it.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator

from trainmaster import frameworks
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.quantities import format_bytes
from trainmaster.engines import registry
from trainmaster.engines.findings import BAD, GOOD, WARNING, Finding, Outcome, finding

_ROOM = 2**30  # bytes; a disk with less free is worth a warning
_FILES = 1024  # open files with which a job of some tasks runs


def examined() -> Iterator[Finding]:
    """Yield the findings of all checks, in order; a check that itself fails is a finding too."""
    for name, check in CHECKS.items():
        yield finding(name, check, BAD)
    for name in registry.names():
        try:
            engine = registry.engine(name)
        except BadInput as error:
            yield Finding(name, WARNING, error.message, error.place, error.mend)
            continue
        if engine.checks:
            yield from engine.load("checks")()
    for name in frameworks.names():
        try:
            frameworks.load(name)
        except BadInput as error:
            yield Finding(name, WARNING, error.message, error.place, error.mend)


def _python() -> Outcome:
    version = ".".join(map(str, sys.version_info[:3]))
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return (
            WARNING,
            f"{version}, {sys.executable}; PYTHONDONTWRITEBYTECODE is set",
            "unset it: imports take twice as long without bytecode",
        )
    return GOOD, f"{version}, {sys.executable}", ""


def _state() -> Outcome:
    from trainmaster.host.places import file_system, state_dir

    place = state_dir()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    probe = place / f".probe-{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()
    free = shutil.disk_usage(place).free
    text = f"{place} ({file_system(place)}), {format_bytes(free)} free"
    return (GOOD, text, "") if free > _ROOM else (WARNING, text, "free space, or set TRAINMASTER_STATE_DIR")


def _runtime() -> Outcome:
    from trainmaster.client.jobs.places import LONGEST_ID
    from trainmaster.client.submit.submit import new_id
    from trainmaster.host.places import check_sockets, file_system, runtime_dir

    place = runtime_dir()
    text = f"{place} ({file_system(place)})"
    check_sockets(new_id("job"))
    try:
        check_sockets("x" * LONGEST_ID)
    except BadInput as error:
        return WARNING, f"{text}: too long for jobs with long names", error.mend
    return GOOD, text, ""


def _machine() -> Outcome:
    from trainmaster.host.machine import machine

    capacity = machine()
    gpus = len(capacity.devices)
    busy = f" ({len(capacity.busy)} in use)" if capacity.busy else ""
    return GOOD, f"{capacity.cores:g} cores, {format_bytes(capacity.memory)}, {gpus} GPU{'s' * (gpus != 1)}{busy}", ""


def _limits() -> Outcome:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files (at most {'unlimited' if hard == resource.RLIM_INFINITY else hard})"
    return (
        (GOOD, text, "")
        if hard == resource.RLIM_INFINITY or hard >= _FILES
        else (WARNING, text, "raise it: ulimit -Hn")
    )


def _memory() -> Outcome:
    from trainmaster.host.limits import ancestry

    if any(os.access(folder, os.W_OK) for folder in ancestry("memory")):
        return GOOD, "a control group of each container", ""
    return (
        WARNING,
        "by watching: no control group may be made here",
        "a program that grows fast may use more before it is ended",
    )


def _name() -> Outcome:
    name = socket.gethostname()
    try:
        addresses = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})
    except OSError:
        return (
            WARNING,
            f"{name} has no address",
            "add it to /etc/hosts; jobs on one machine use 127.0.0.1 and do not need it",
        )
    return GOOD, f"{name}: {', '.join(addresses)}", ""


def _rdma() -> Outcome:
    from trainmaster.host.network.rdma import UNLIMITED, locked_limit, ports

    devices = list(ports())
    if not devices:
        return GOOD, "none; collectives go over sockets", ""
    text = ", ".join(f"{port} ({port.layer}{f', {port.interface}' if port.interface else ''})" for port in devices)
    if obstacles := [obstacle for port in devices if (obstacle := port.obstacle())]:
        return (
            WARNING,
            f"{text}; {'; '.join(obstacles)}",
            "let this user read and write /dev/infiniband/uverbs*, and see ibstat",
        )
    limit = locked_limit()
    if limit != UNLIMITED:
        return WARNING, f"{text}; programs may lock {format_bytes(limit)} of memory", "raise it: ulimit -l unlimited"
    return GOOD, text, ""


def _settings() -> Outcome:
    from trainmaster.client.spec.settings import default_engine, standing
    from trainmaster.client.spec.settings_files import settings_files

    standing()
    engine = default_engine("local")
    files = [path for path in settings_files(os.environ) if os.path.isfile(path)]
    return GOOD, f"{' and '.join(files) or 'no file of settings'}; jobs run on {engine} without --engine", ""


def _pages() -> Outcome:
    from trainmaster.web.pages.render import has_scripts

    if has_scripts():
        return GOOD, "with charts and live figures", ""
    return (
        WARNING,
        "without scripts, which draw charts and keep figures live",
        "install Node.js, whose npm brings them, and then trainmaster again",
    )


CHECKS: dict[str, Callable[[], Outcome]] = {
    "python": _python,
    "settings": _settings,
    "state directory": _state,
    "runtime directory": _runtime,
    "machine": _machine,
    "limits": _limits,
    "memory limits": _memory,
    "host name": _name,
    "RDMA devices": _rdma,
    "pages": _pages,
}
