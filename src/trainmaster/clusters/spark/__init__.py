"""A standalone Spark on this machine: one master and its workers, each its own JVM, nothing patched.

A cluster is a directory, `clusters/<name>` in the state directory, and `cluster.json` in it the record by which it is found and ended.

    cluster = up(Settings(nodes=2))     # idempotent: a cluster that runs with these settings is left alone
    cluster.daemon("worker-1").kill()
    cluster.daemon("worker-1").start()
    cluster.stop()

States: *running* (all daemons live, and all were once ready), *broken* (some are dead, or its start was interrupted), *stopped* (none
lives). `up` of a broken cluster starts its dead daemons and leaves the others alone; where that is not enough, it starts all of them.
A command that fails or is interrupted leaves nothing running. One command at a time works on a cluster: `up` and `down` hold a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainmaster.clusters import daemons, ports, records
from trainmaster.clusters.records import alone, folder_of
from trainmaster.clusters.spark.cluster import KIND, OFFSETS, Cluster, Daemon, Place
from trainmaster.clusters.spark.settings import Settings
from trainmaster.core.errors import EngineFailed
from trainmaster.engines.spark.home import Home, find_home

__all__ = ["Cluster", "Daemon", "Home", "Settings", "clusters", "down", "find", "find_home", "folder_of", "up"]

Say = Callable[[str], None]


def clusters() -> list[Cluster]:
    """Return the existing clusters, by name."""
    return records.every(Cluster.read)


def find(name: str = KIND) -> Cluster:
    """Return a cluster by name. Raises NotFound where there is none."""
    return records.find(Cluster.read, name, KIND)


def up(
    settings: Settings,
    name: str = KIND,
    folder: Path | None = None,
    say: Say = lambda line: None,
    home: Path | None = None,
) -> Cluster:
    """Start a cluster and return when the master has all workers.

    `folder` replaces its place in the state directory, `home` the Spark that this machine names (see `find_home`). `say` gets long steps.

    Raises BadInput where something is missing, or where the cluster exists with other settings, and EngineFailed where a daemon ends.
    """
    return up_or_found(settings, name, folder, say, home)[0]


def up_or_found(
    settings: Settings,
    name: str = KIND,
    folder: Path | None = None,
    say: Say = lambda line: None,
    home: Path | None = None,
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
        if existing is not None and records.revive(existing, say):
            return existing, True
        spark = find_home(home)
        spark.java()
        if existing is not None:
            say(f"the cluster {existing.name} is {existing.state}; starting it again")
            existing.stop(keep=True)
        return _start(folder, settings, spark, existing), True


def down(name: str = KIND, folder: Path | None = None) -> bool:
    """End a cluster, or what is left of it, and remove its directory. Return False where there was none."""
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
            existing.stop()
        else:
            daemons.stop([], folder)
            daemons.remove(folder)
    return True


def _start(folder: Path, settings: Settings, home: Home, existing: Cluster | None) -> Cluster:
    """Start a cluster in `folder` and return it when it is ready. Where that fails, end its processes."""
    reserved = {port for other in clusters() if other.folder != folder for port in other.place.ports.values()}
    chosen = ports.choose(reserved, existing.place.ports if existing else None, OFFSETS)
    cluster = Cluster(folder.name, Place(folder, chosen), settings, home)
    try:
        for part in ("logs", "tmp"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        cluster.save()
        cluster.write_conf()
        for name in cluster.names:
            cluster.daemon(name).start()
        cluster.wait_ready()
        cluster.ready = True
        cluster.save()
    except BaseException as error:
        cluster.stop(keep=True)
        if existing is None:
            daemons.remove(folder, but="logs" if isinstance(error, EngineFailed) else "")  # its message names a log
        raise
    return cluster
