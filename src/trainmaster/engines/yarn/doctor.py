"""Check that jobs can run on the Hadoop cluster that this machine is configured for."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator

from trainmaster.core.errors import TrainmasterError
from trainmaster.core.spec.quantities import format_count, format_seconds
from trainmaster.engines.findings import GOOD, WARNING, Finding, Outcome, finding
from trainmaster.engines.yarn.client import YarnClient
from trainmaster.hadoop.conf import is_named, is_secure
from trainmaster.hadoop.security.tickets import read_cache
from trainmaster.log.dfs import SCHEMES, Dfs, open_dfs

_SOON = 3600.0  # seconds; a ticket with less time left is a warning


def findings() -> Iterator[Finding]:
    """Look at the cluster that HADOOP_CONF_DIR or HADOOP_HOME leads to, as far as it can be asked."""
    if not is_named():
        none = "neither HADOOP_CONF_DIR nor HADOOP_HOME is set; they are needed for --engine yarn alone"
        yield Finding("yarn", GOOD, none)
        return
    try:
        client = YarnClient()
        client.user  # noqa: B018  it may want a ticket
    except TrainmasterError as error:
        yield Finding("yarn", WARNING, error.message, error.place, error.mend)
        return
    for name, check in CHECKS.items():
        yield finding(name, functools.partial(check, client))


def _yarn(client: YarnClient) -> Outcome:
    nodes = client.free()
    summary = f"{client.user} on {client.place} ({client.conf.folder}), {format_count(len(nodes), 'node')}"
    if not nodes:
        return WARNING, summary, "no node runs: jobs wait"
    attempts, asked_for = client.attempts
    if attempts < asked_for:
        key = "yarn.resourcemanager.am.global.max-attempts"
        instead = "where it is not set, yarn.resourcemanager.am.max-attempts is the limit"
        mend = f"have {key} raised to {asked_for} for long jobs; {instead}"
        return WARNING, f"{summary}; a master may die {attempts - 1} times", mend
    return GOOD, summary, ""


def _home(client: YarnClient) -> Outcome:
    """Check the user's directory on HDFS, below which jobs keep their files: it must exist, or the user must be able to make it."""
    fs, user = client.store().fs, client.user
    if fs.partition("://")[0] not in SCHEMES:
        return (
            WARNING, f"fs.defaultFS is {client.conf.get('fs.defaultFS')}, and jobs on YARN keep their files on HDFS",
            f"name a cluster's in {client.conf.folder}/core-site.xml",
        )  # fmt: skip
    home = f"/user/{user}"
    dfs, _ = open_dfs(f"{fs}{home}")
    nearest, owner, permission = _nearest(dfs, home)
    if permission & 0o002 or (owner == user and permission & 0o200):
        return GOOD, f"{fs}{home}" if nearest == home else f"{fs}{home}, which the first job makes", ""
    chown = f"hdfs dfs -chown {user} {home}"
    if nearest == home:
        return WARNING, f"{fs}{home} is {owner}'s; {user} may not write there", f"an administrator gives it: {chown}"
    commands = f"hdfs dfs -mkdir -p {home}; {chown}"
    return WARNING, f"{fs}{home} does not exist, and {user} may not make it", f"an administrator makes it: {commands}"


def _nearest(dfs: Dfs, folder: str) -> tuple[str, str, int]:
    """Return the folder, or the nearest one above it that exists; with owner and permission bits."""
    try:
        status = dfs.call(lambda client: client.get_file_info(folder))
    except FileNotFoundError:
        if folder == "/":
            raise
        return _nearest(dfs, os.path.dirname(folder))
    return folder, status.owner, status.permission


def _ticket(client: YarnClient) -> Outcome:
    if not is_secure(client.conf):
        return GOOD, "the cluster asks for none", ""
    cache = read_cache()
    if cache.first is None:
        return GOOD, f"{client.user}, by a keytab", ""
    left = cache.first.end - time.time()
    text = f"{cache.principal} for {format_seconds(max(0, round(left)))} more, in {cache.name}"
    return (GOOD, text, "") if left > _SOON else (WARNING, text, "get a new one: kinit; or renew it: kinit -R")


CHECKS: dict[str, Callable[[YarnClient], Outcome]] = {"ticket": _ticket, "yarn": _yarn, "home on HDFS": _home}
