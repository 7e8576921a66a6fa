"""A Hadoop on this machine: NameNode, DataNode, ResourceManager and NodeManagers, each its own JVM, nothing patched.

A cluster is a directory, `clusters/<name>` in the state directory, and `cluster.json` in it the record by which it is found and ended.

    cluster = up(Settings(nodes=2))     # idempotent: a cluster that runs with these settings is left alone
    cluster.daemon("nodemanager-1").kill()
    cluster.daemon("nodemanager-1").start()
    cluster.stop()

States: *running* (all daemons live, and all were once ready), *broken* (some are dead, or its start was interrupted), *stopped* (none
lives).
`up` of a broken or stopped cluster starts it again on the data that it has. Where only some daemons died, those alone are started, and the
others, the ports and the containers stay. A command that fails or is interrupted leaves nothing running. One command at a time works on a
cluster: `up` and `down` hold a lock.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from trainmaster.clusters import daemons, ports, records
from trainmaster.clusters.hadoop import classes, jars, kerberos
from trainmaster.clusters.hadoop import conf as hadoop_conf
from trainmaster.clusters.hadoop.cluster import KIND, NAMENODE, Cluster, Daemon
from trainmaster.clusters.hadoop.settings import Settings
from trainmaster.clusters.records import alone, folder_of
from trainmaster.core.errors import EngineFailed
from trainmaster.hadoop.conf import load
from trainmaster.hadoop.errors import HadoopError
from trainmaster.hadoop.hdfs import Namenode
from trainmaster.hadoop.proto import hdfs_pb2
from trainmaster.hadoop.security.auth import Simple

__all__ = ["Cluster", "Daemon", "Settings", "clusters", "down", "find", "folder_of", "up"]

Say = Callable[[str], None]
_TRIES = 3  # of a start, each on other ports, where one was taken at the last moment


def clusters() -> list[Cluster]:
    """Return the existing clusters, by name."""
    return records.every(Cluster.read)


def find(name: str = "hadoop") -> Cluster:
    """Return a cluster by name. Raises NotFound where there is none."""
    return records.find(Cluster.read, name, KIND)


def up(settings: Settings, name: str = "hadoop", folder: Path | None = None, say: Say = lambda line: None) -> Cluster:
    """Start a cluster and return when it is ready. `folder` replaces its place in the state directory; `say` reports long steps.

    Raises BadInput where something is missing, or where the cluster exists with other settings, and EngineFailed where a daemon ends.
    """
    return up_or_found(settings, name, folder, say)[0]


def up_or_found(
    settings: Settings, name: str = "hadoop", folder: Path | None = None, say: Say = lambda line: None
) -> tuple[Cluster, bool]:
    """Start a cluster as `up` does; return it, and whether it was started (False where it ran already)."""
    folder = folder or folder_of(name)
    with alone(folder):
        records.check(folder, KIND)
        existing = Cluster.read(folder)
        if existing is not None and existing.settings != settings:
            raise records.differs(folder, KIND)
        if existing is not None and existing.state == "running":
            return existing, False
        if settings.kerberos:
            kerberos.check()
        java = jars.java()
        if existing is not None and records.revive(existing, say):
            return existing, True
        lib = jars.jars(say)
        if existing is not None:
            say(f"the cluster {existing.name} is {existing.state}; starting it again")
            existing.stop(keep=True)
        for tries_left in reversed(range(_TRIES)):
            try:
                return _start(folder, settings, java, lib, existing, say), True
            except EngineFailed as error:
                if not tries_left or "BindException" not in error.message:
                    raise
    raise AssertionError("the last try returns or raises")


def down(name: str = "hadoop", folder: Path | None = None, keep: bool = False) -> bool:
    """End a cluster, or what is left of it, and remove its directory unless it is to be kept. Return False where there was none."""
    folder = folder or folder_of(name)
    if not folder.exists():
        return False
    with alone(folder):
        records.check(folder, KIND)
        try:
            existing = Cluster.read(folder)
        except EngineFailed:  # a record that nobody can read; the cluster's processes carry its mark
            existing = None
        if existing is not None:
            existing.stop(keep)
        else:
            daemons.stop([], folder)
            daemons.remove(folder)
    return True


def _start(folder: Path, settings: Settings, java: str, lib: Path, existing: Cluster | None, say: Say) -> Cluster:
    """Start a cluster in `folder` and return it when it is ready. Where that fails, end its processes and keep earlier data."""
    reserved = {port for other in clusters() if other.folder != folder for port in other.place.ports.values()}
    chosen = ports.choose(reserved, existing.place.ports if existing else None)
    user = pwd.getpwuid(os.getuid()).pw_name
    cluster = Cluster(folder.name, hadoop_conf.Place(folder, chosen, lib, user), settings, java)
    try:
        for part in ("logs", "tmp"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        cluster.save()
        _prepare(cluster)
        for name in cluster.names:
            cluster.daemon(name).start()
        cluster.wait_ready()
        _furnish(cluster)
        _archive_classes(cluster, say)
        cluster.ready = True
        cluster.save()
    except BaseException as error:
        cluster.stop(keep=True)
        if existing is None:
            daemons.remove(folder, but="logs" if isinstance(error, EngineFailed) else "")  # its message names a log
        raise
    return cluster


def _prepare(cluster: Cluster) -> None:
    """Make what the daemons need before they start: configuration, Kerberos, and a formatted HDFS."""
    place, settings = cluster.place, cluster.settings
    hadoop_conf.write(place, settings)
    if settings.kerberos:
        kerberos.make(place.folder, settings, place.ports["kdc"], (*settings.users, place.user))
        cluster.daemon("kdc").start()
        cluster.wait_listening("kdc")
    if settings.high_availability:
        properties = {
            "clientPort": place.ports["zookeeper"], "clientPortAddress": "localhost",
            "dataDir": place.folder / "zookeeper", "tickTime": 500,
        }  # fmt: skip
        (place.folder / "zookeeper.cfg").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    if not (place.folder / "namenode" / "current" / "VERSION").exists():
        log = place.folder / "logs" / "format.log"
        with log.open("w") as output:
            done = subprocess.run(
                cluster.command(NAMENODE, "-format", "-force", "-nonInteractive"),
                env=daemons.environment(place.folder, cluster.environ),
                cwd=place.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False,
            )  # fmt: skip
        if done.returncode != 0:
            raise EngineFailed(
                "HDFS could not be formatted:\n  " + "\n  ".join(daemons.last_words(log)), anchor="cluster-failed"
            )


def _archive_classes(cluster: Cluster, say: Say) -> None:
    """Make the archive of classes, where there is none yet."""
    if not classes.archive(cluster.java, cluster.place.jars).exists():
        say("making an archive of Hadoop's classes, once; starts take half as long then")
        lists = [path for name in cluster.names if (path := cluster.daemon(name).class_list).exists()]
        if not classes.make(cluster.java, cluster.place.jars, lists, cluster.java_options):
            say("there is none: another is being made, or this Java makes none")


def _furnish(cluster: Cluster) -> None:
    """Make the parts of a cluster that users expect: directories in HDFS, labels on nodes."""
    user = cluster.place.user
    if cluster.settings.kerberos:
        _furnish_as_superuser(cluster)
    else:
        _make_folders(cluster, {"/tmp": 0o1777, "/tmp/logs": 0o1777, f"/user/{user}": 0o755})
    if cluster.settings.labels:
        _set_labels(cluster)


def _set_labels(cluster: Cluster) -> None:
    """Create the labels and give them to nodes, as YARN's administrator."""
    labels, environ = cluster.settings.labels, {"HADOOP_USER_NAME": cluster.place.user}
    if cluster.settings.kerberos:
        environ = {"KRB5CCNAME": f"FILE:{kerberos.place(cluster.folder)}/yarn.tickets"}
        kerberos.take_ticket(cluster.folder, "yarn", environ["KRB5CCNAME"])
    names = ",".join(f"{name}(exclusive=true)" for name in sorted(set(labels.values())))
    nodes = " ".join(f"{cluster.node_id(number)}={label}" for number, label in labels.items())
    for words in (["-addToClusterNodeLabels", names], ["-replaceLabelsOnNode", nodes]):
        done = cluster.run("org.apache.hadoop.yarn.client.cli.RMAdminCLI", *words, environ=environ)
        if done.returncode != 0:
            raise EngineFailed(f"the labels could not be set: {done.stderr[-500:]}", anchor="cluster-failed")


def _make_folders(cluster: Cluster, folders: Mapping[str, int]) -> None:
    """Make directories in HDFS, with their modes, as its superuser."""

    async def make() -> None:
        async with Namenode.of(load(cluster.conf_dir), Simple(cluster.place.user)) as namenode:
            for path, mode in folders.items():
                permission = hdfs_pb2.FsPermissionProto(perm=mode)
                await namenode.mkdirs(
                    hdfs_pb2.MkdirsRequestProto(src=path, masked=permission, unmasked=permission, createParent=True)
                )

    try:
        asyncio.run(make())
    except HadoopError as error:
        raise EngineFailed(
            f"the first directories could not be made in HDFS: {error.message}", anchor="cluster-failed"
        ) from error


def _furnish_as_superuser(cluster: Cluster) -> None:
    """Make the directories in HDFS by Hadoop's own shell, which logs in by Kerberos."""
    tickets = f"FILE:{kerberos.place(cluster.folder)}/hdfs.tickets"
    kerberos.take_ticket(cluster.folder, "hdfs", tickets)
    folders = ["/tmp/logs", "/user"]  # for everybody; users make their own homes
    shell = ["-Dfs.permissions.umask-mode=000", "-mkdir", "-p", *folders]
    done = cluster.run("org.apache.hadoop.fs.FsShell", *shell, environ={"KRB5CCNAME": tickets})
    if done.returncode != 0:
        raise EngineFailed(
            f"{' and '.join(folders)} could not be made in HDFS: {done.stderr[-500:]}", anchor="cluster-failed"
        )
