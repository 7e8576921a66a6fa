"""A Hadoop on this machine: NameNode, DataNode, ResourceManager and NodeManagers, each its own JVM, nothing patched.

A cluster is a directory, `clusters/<name>` in the state directory, and `cluster.json` in it the record by which it is found and ended.

    cluster = up(Settings(nodes=2))     # idempotent: a cluster that runs as asked is left alone
    cluster.daemon("nodemanager-1").kill()
    cluster.daemon("nodemanager-1").start()
    cluster.stop()

States: *running* (all daemons live, and all were once ready), *broken* (some are dead, or its start was broken off), *stopped* (none
lives).
`up` of a broken or stopped cluster starts it again on the data that it has. Where only some daemons died, those alone are started, and the
others, the ports and the containers stay. What fails or is interrupted leaves nothing running. One
command at a time works on a cluster: a lock, held by `up` and `down`.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path

from trainmaster.clusters import daemons, ports, records
from trainmaster.clusters.hadoop import classes, jars, kerberos, pages
from trainmaster.clusters.hadoop import conf as hadoop_conf
from trainmaster.clusters.hadoop.cluster import KIND, NAMENODE, Cluster, Daemon
from trainmaster.clusters.hadoop.settings import Settings
from trainmaster.clusters.records import alone, folder_of
from trainmaster.core.errors import EngineFailed

__all__ = ["Cluster", "Daemon", "Settings", "clusters", "down", "find", "folder_of", "up"]

Say = Callable[[str], None]
_TRIES = 3  # of a start, each on other ports, where one was taken at the last moment


def clusters() -> list[Cluster]:
    """The clusters that there are, by name."""
    return records.every(Cluster.read)


def find(name: str = "hadoop") -> Cluster:
    """A cluster by name. NotFound where there is none."""
    return records.find(Cluster.read, name, KIND)


def up(settings: Settings, name: str = "hadoop", folder: Path | None = None, say: Say = lambda line: None) -> Cluster:
    """Start a cluster and return when it is ready; `folder` instead of its place in the state directory. `say` hears what takes long.

    BadInput where something is missing, or where the cluster is there with other settings; EngineFailed where a daemon ends.
    """
    return up_or_found(settings, name, folder, say)[0]


def up_or_found(
    settings: Settings, name: str = "hadoop", folder: Path | None = None, say: Say = lambda line: None
) -> tuple[Cluster, bool]:
    """The same, and whether it was started: False where it ran already."""
    folder = folder or folder_of(name)
    with alone(folder):
        records.check(folder, KIND)
        there = Cluster.read(folder)
        if there is not None and there.settings != settings:
            raise records.differs(folder, KIND)
        if there is not None and there.state == "running":
            return there, False
        if settings.kerberos:
            kerberos.check()
        java = jars.java()
        if there is not None and _revived(there, say):
            return there, True
        lib = jars.jars(say)
        if there is not None:
            say(f"the cluster {there.name} is {there.state}; starting it again")
            there.stop(keep=True)
        for left in reversed(range(_TRIES)):
            try:
                return _started(folder, settings, java, lib, there, say), True
            except EngineFailed as error:
                if not left or "BindException" not in error.message:
                    raise
    raise AssertionError("the last try returns or raises")


def _revived(cluster: Cluster, say: Say) -> bool:
    """Start the daemons that have ended of a cluster whose others live. False where all have ended, or where that is not enough."""
    if not (cluster.ready and cluster.state == "broken"):
        return False
    ended = [name for name in cluster.names if not cluster.daemon(name).alive]
    say(f"{' and '.join(ended)} of the cluster {cluster.name} ended; starting again what ended")
    try:
        cluster.revive()
    except EngineFailed as error:
        say(f"that is not enough: {error.message.splitlines()[0]}")
        return False
    return True


def down(name: str = "hadoop", folder: Path | None = None, keep: bool = False) -> bool:
    """End a cluster, whatever is left of it, and remove its directory unless it is to be kept; False where there was none."""
    folder = folder or folder_of(name)
    if not folder.exists():
        return False
    with alone(folder):
        records.check(folder, KIND)
        try:
            there = Cluster.read(folder)
        except EngineFailed:  # a record that nobody can read; what it started carries the cluster's mark
            there = None
        if there is not None:
            there.stop(keep)
        else:
            daemons.stop([], folder)
            daemons.remove(folder)
    return True


def _started(folder: Path, settings: Settings, java: str, lib: Path, there: Cluster | None, say: Say) -> Cluster:
    """A cluster in `folder`, ready. Where that fails nothing of it runs, and what was there before is kept."""
    taken = {port for other in clusters() if other.folder != folder for port in other.place.ports.values()}
    chosen = ports.choose(taken, there.place.ports if there else None)
    user = pwd.getpwuid(os.getuid()).pw_name
    cluster = Cluster(folder.name, hadoop_conf.Place(folder, chosen, lib, user), settings, java)
    try:
        for part in ("logs", "tmp"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        cluster.save()
        _prepared(cluster)
        for name in cluster.names:
            cluster.daemon(name).start()
        cluster.wait_ready()
        _furnished(cluster)
        _archived(cluster, say)
        cluster.ready = True
        cluster.save()
    except BaseException as error:
        cluster.stop(keep=True)
        if there is None:
            daemons.remove(folder, but="logs" if isinstance(error, EngineFailed) else "")  # its message names a log
        raise
    return cluster


def _prepared(cluster: Cluster) -> None:
    """What the daemons need before they start."""
    place, settings = cluster.place, cluster.settings
    hadoop_conf.write(place, settings)
    if settings.kerberos:
        kerberos.make(place.folder, settings, place.ports["kdc"], (*settings.users, place.user))
        cluster.daemon("kdc").start()
        cluster.wait_listening("kdc")
    if settings.high_availability:
        told = {
            "clientPort": place.ports["zookeeper"], "clientPortAddress": "localhost",
            "dataDir": place.folder / "zookeeper", "tickTime": 500,
        }  # fmt: skip
        (place.folder / "zookeeper.cfg").write_text("".join(f"{name}={value}\n" for name, value in told.items()))
    if not (place.folder / "namenode" / "current" / "VERSION").exists():
        log = place.folder / "logs" / "format.log"
        with log.open("w") as said:
            done = subprocess.run(
                cluster.command(NAMENODE, "-format", "-force", "-nonInteractive"),
                env=daemons.environment(place.folder, cluster.environ),
                cwd=place.folder, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=False,
            )  # fmt: skip
        if done.returncode != 0:
            raise EngineFailed(
                "HDFS could not be formatted:\n  " + "\n  ".join(daemons.last_words(log)), anchor="cluster-failed"
            )


def _archived(cluster: Cluster, say: Say) -> None:
    """The archive of classes, where there is none yet."""
    if not classes.archive(cluster.java, cluster.place.jars).exists():
        say("making an archive of Hadoop's classes, once; starts take half as long then")
        lists = [path for name in cluster.names if (path := cluster.daemon(name).class_list).exists()]
        if not classes.make(cluster.java, cluster.place.jars, lists, cluster.java_options):
            say("there is none: another is being made, or this Java makes none")


def _furnished(cluster: Cluster) -> None:
    """What a user finds in a cluster: directories in HDFS, labels on nodes."""
    at, user = cluster.place.ports, cluster.place.user
    if cluster.settings.kerberos:
        _furnished_as_superuser(cluster)
    else:
        pages.make_folders(at["namenode.http"], user)
    if labels := cluster.settings.labels:
        pages.set_labels(
            at[f"{cluster.active or 'resourcemanager'}.http"],
            {cluster.node_id(number): label for number, label in labels.items()},
        )


def _furnished_as_superuser(cluster: Cluster) -> None:
    """The same by Hadoop's own shell: WebHDFS would want Kerberos over HTTP."""
    tickets = f"FILE:{kerberos.place(cluster.folder)}/hdfs.tickets"
    kerberos.take_ticket(cluster.folder, "hdfs", tickets)
    folders = ["/tmp/logs", "/user"]  # for everybody; homes are made by those whose they are
    shell = ["-Dfs.permissions.umask-mode=000", "-mkdir", "-p", *folders]
    done = cluster.run("org.apache.hadoop.fs.FsShell", *shell, environ={"KRB5CCNAME": tickets})
    if done.returncode != 0:
        raise EngineFailed(
            f"{' and '.join(folders)} could not be made in HDFS: {done.stderr[-500:]}", anchor="cluster-failed"
        )
