"""Whether this machine is ready for jobs: each check says what it found and, where that is in the way, what to do.

Bad is what keeps every job from running. What is wrong with a cluster is a warning: jobs on this machine run without it.
"""

from __future__ import annotations

import functools
import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.quantities import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from trainmaster.engines.kubernetes.client import KubernetesClient
    from trainmaster.engines.yarn.client import YarnClient
    from trainmaster.log.dfs import Dfs

GOOD, WARNING, BAD = "good", "warning", "bad"
_ROOM = 2**30  # bytes free on a disk below which it is told
_FILES = 1024  # open files with which a job of some tasks runs
_SOON = 3600.0  # s that a ticket has left, below which it is told


@attrs.frozen(slots=True)
class Finding:
    """What one check found."""

    check: str
    state: str
    text: str
    place: str = ""
    mend: str = ""


def examined() -> Iterator[Finding]:
    """All checks, in order; one that itself fails is a finding too."""
    for name, check in CHECKS.items():
        yield _finding(name, check, BAD)
    yield from _cluster()
    yield from _kubernetes()


Told = tuple[str, str, str]  # state, text, mend


def _finding(name: str, check: Callable[[], Told], otherwise: str) -> Finding:
    """What a check found; `otherwise` is its state where it fails itself."""
    try:
        state, text, mend = check()
    except TrainmasterError as error:
        return Finding(name, otherwise, error.message, error.place, error.mend)
    except OSError as error:
        return Finding(
            name, otherwise, error.strerror or str(error), str(error.filename or ""), getattr(error, "mend", "")
        )
    return Finding(name, state, text, mend=mend)


def _python() -> Told:
    version = ".".join(map(str, sys.version_info[:3]))
    if os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return (
            WARNING,
            f"{version}, {sys.executable}; PYTHONDONTWRITEBYTECODE is set",
            "unset it: imports take twice as long without bytecode",
        )
    return GOOD, f"{version}, {sys.executable}", ""


def _state() -> Told:
    from trainmaster.engines.local.places import file_system, state_dir

    place = state_dir()
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    probe = place / f".probe-{os.getpid()}"
    probe.write_bytes(b"")
    probe.unlink()
    free = shutil.disk_usage(place).free
    text = f"{place} ({file_system(place)}), {format_bytes(free)} free"
    return (GOOD, text, "") if free > _ROOM else (WARNING, text, "free space, or set TRAINMASTER_STATE_DIR")


def _runtime() -> Told:
    from trainmaster.client.places import LONGEST_ID
    from trainmaster.client.submit import new_id
    from trainmaster.engines.local.places import check_sockets, file_system, runtime_dir

    place = runtime_dir()
    text = f"{place} ({file_system(place)})"
    check_sockets(new_id("job"))
    try:
        check_sockets("x" * LONGEST_ID)
    except BadInput as error:
        return WARNING, f"{text}: too long for jobs with long names", error.mend
    return GOOD, text, ""


def _machine() -> Told:
    from trainmaster.engines.local.machine import machine

    found = machine()
    gpus = len(found.devices)
    busy = f" ({len(found.taken)} in use)" if found.taken else ""
    return GOOD, f"{found.cores:g} cores, {format_bytes(found.memory)}, {gpus} GPU{'s' * (gpus != 1)}{busy}", ""


def _limits() -> Told:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files (at most {'unlimited' if hard == resource.RLIM_INFINITY else hard})"
    return (
        (GOOD, text, "")
        if hard == resource.RLIM_INFINITY or hard >= _FILES
        else (WARNING, text, "raise it: ulimit -Hn")
    )


def _memory() -> Told:
    from trainmaster.engines.local.limits import ancestry

    if any(os.access(folder, os.W_OK) for folder in ancestry("memory")):
        return GOOD, "a control group of each container", ""
    return (
        WARNING,
        "by watching: no control group may be made here",
        "a program that grows fast may use more before it is ended",
    )


def _name() -> Told:
    name = socket.gethostname()
    try:
        addresses = sorted({str(found[4][0]) for found in socket.getaddrinfo(name, None)})
    except OSError:
        return (
            WARNING,
            f"{name} has no address",
            "add it to /etc/hosts; jobs on one machine use 127.0.0.1 and do not need it",
        )
    return GOOD, f"{name}: {', '.join(addresses)}", ""


CHECKS: dict[str, Callable[[], Told]] = {
    "python": _python,
    "state directory": _state,
    "runtime directory": _runtime,
    "machine": _machine,
    "limits": _limits,
    "memory limits": _memory,
    "host name": _name,
}


# -- a cluster --


def _cluster() -> Iterator[Finding]:
    """Of the cluster that HADOOP_CONF_DIR or HADOOP_HOME leads to; as far as it can be asked."""
    from trainmaster.hadoop.conf import is_named

    if not is_named():
        none = "neither HADOOP_CONF_DIR nor HADOOP_HOME is set; they are needed for --engine yarn alone"
        yield Finding("yarn", GOOD, none)
        return
    from trainmaster.client.places import client_of

    try:
        client: YarnClient = client_of("yarn")
        client.user  # noqa: B018  it may want a ticket
    except TrainmasterError as error:
        yield Finding("yarn", WARNING, error.message, error.place, error.mend)
        return
    for name, check in CLUSTER.items():
        yield _finding(name, functools.partial(check, client), WARNING)


def _yarn(client: YarnClient) -> Told:
    nodes = client.free()
    found = f"{client.user} on {client.place} ({client.conf.folder}), {format_count(len(nodes), 'node')}"
    if not nodes:
        return WARNING, found, "no node runs: jobs wait"
    attempts, wanted = client.attempts
    if attempts < wanted:
        key = "yarn.resourcemanager.am.global.max-attempts"
        instead = "where it is not set, yarn.resourcemanager.am.max-attempts is the limit"
        mend = f"have {key} raised to {wanted} for long jobs; {instead}"
        return WARNING, f"{found}; a master may die {attempts - 1} times", mend
    return GOOD, found, ""


def _home(client: YarnClient) -> Told:
    """The user's directory on HDFS, below which is what jobs keep: it has to be there, or that it can be made."""
    from trainmaster.log.dfs import SCHEMES, open_dfs

    fs, user = client.store().fs, client.user
    if fs.partition("://")[0] not in SCHEMES:
        return (
            WARNING, f"fs.defaultFS is {client.conf.get('fs.defaultFS')}, and jobs on YARN keep their files on HDFS",
            f"name a cluster's in {client.conf.folder}/core-site.xml",
        )  # fmt: skip
    home = f"/user/{user}"
    dfs, _ = open_dfs(f"{fs}{home}")
    there, owner, permission = _nearest(dfs, home)
    if permission & 0o002 or (owner == user and permission & 0o200):
        return GOOD, f"{fs}{home}" if there == home else f"{fs}{home}, which the first job makes", ""
    chown = f"hdfs dfs -chown {user} {home}"
    if there == home:
        return WARNING, f"{fs}{home} is {owner}'s; {user} may not write there", f"an administrator gives it: {chown}"
    made = f"hdfs dfs -mkdir -p {home}; {chown}"
    return WARNING, f"{fs}{home} does not exist, and {user} may not make it", f"an administrator makes it: {made}"


def _nearest(dfs: Dfs, folder: str) -> tuple[str, str, int]:
    """The folder, or the nearest above it that exists; with owner and permission bits."""
    try:
        found = dfs.call(lambda client: client.get_file_info(folder))
    except FileNotFoundError:
        if folder == "/":
            raise
        return _nearest(dfs, os.path.dirname(folder))
    return folder, found.owner, found.permission


def _ticket(client: YarnClient) -> Told:
    from trainmaster.hadoop.conf import is_secure

    if not is_secure(client.conf):
        return GOOD, "the cluster asks for none", ""
    from trainmaster.hadoop.tickets import read_cache

    cache = read_cache()
    if cache.first is None:
        return GOOD, f"{client.user}, by a keytab", ""
    left = cache.first.end - time.time()
    text = f"{cache.principal} for {format_seconds(max(0, round(left)))} more, in {cache.name}"
    return (GOOD, text, "") if left > _SOON else (WARNING, text, "get a new one: kinit; or renew it: kinit -R")


CLUSTER: dict[str, Callable[[YarnClient], Told]] = {"ticket": _ticket, "yarn": _yarn, "home on HDFS": _home}


# -- Kubernetes --


def _kubernetes() -> Iterator[Finding]:
    """Of the cluster that the kubeconfig leads to: where it answers, what its user may do there."""
    from trainmaster.kube.config import is_named

    if not is_named():
        none = "neither KUBECONFIG nor ~/.kube/config is there; one is needed for --engine kubernetes alone"
        yield Finding("kubernetes", GOOD, none)
        return
    from trainmaster.client.places import client_of

    client: KubernetesClient = client_of("kubernetes")
    found = _finding("kubernetes", functools.partial(_server, client), WARNING)
    yield found
    if found.state == GOOD:
        for name, check in KUBERNETES.items():
            yield _finding(name, functools.partial(check, client), WARNING)


def _server(client: KubernetesClient) -> Told:
    config = client.config()
    version = client.asked(config, lambda api: api.version())
    return (
        GOOD,
        f"{version} at {config.server}, {config.user or 'its pod'} of {config.source}, namespace {config.namespace}",
        "",
    )


def _rights(client: KubernetesClient) -> Told:
    """To submit; and the account that the job's master will have."""
    from trainmaster.engines.kubernetes import rights
    from trainmaster.engines.kubernetes.client import exists
    from trainmaster.engines.kubernetes.settings import settings

    config = client.config()
    beside = settings({"run_master": "client"})
    client.asked(config, exists)
    client.asked(config, lambda api: rights.check(api, beside))
    try:
        account = client.asked(config, lambda api: rights.account(api, settings({})))
    except BadInput as error:
        applied = f"tm cluster grants --namespace {config.namespace} | kubectl apply -f -"
        mend = f"an administrator applies once: {applied}; until then: --set engines.kubernetes.run_master=client"
        return WARNING, error.message, mend
    return (
        GOOD,
        f"jobs may run in {config.namespace}; their masters are {account or 'given an account with each job'}",
        "",
    )


def _images(client: KubernetesClient) -> Told:
    from trainmaster.engines.kubernetes.pods import IMAGE

    if named := os.environ.get(IMAGE, ""):
        return GOOD, f"{named}, for jobs that name none", ""
    return GOOD, f"{IMAGE} is not set: each job names its own, by environment.image", ""


KUBERNETES: dict[str, Callable[[KubernetesClient], Told]] = {"rights on kubernetes": _rights, "image": _images}
