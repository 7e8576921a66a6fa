"""A Kubernetes on this machine: a real control plane, kubelets and containerd, built out of Go modules and started without an installer.

A cluster is a directory, `clusters/<name>` in the state directory, and `cluster.json` in it the record by which it is found and ended.

    cluster = up(Settings(nodes=2))         # idempotent: a cluster that runs as asked is left alone
    cluster.kubectl("get", "pods", user="edit")
    cluster.daemon("kubelet-1").kill()      # its pods go on
    cluster.kill_node(2)                    # they do not
    cluster.revive()

With real nodes it needs root and lives within a boundary of its own (`boundary`), so that its end leaves the machine as it was however
it comes; with simulated ones alone it is processes of whoever starts it. `up` of a cluster of which daemons died starts these again; one
that was stopped as a whole is made anew, for what it had is gone with its boundary. One command at a time works on a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from trainmaster.clusters import daemons, ports, records
from trainmaster.clusters.kubernetes import binaries, boundary, certificates, conf, images, needs
from trainmaster.clusters.kubernetes.cluster import KIND, Cluster, Daemon
from trainmaster.clusters.kubernetes.conf import PLAIN, Place
from trainmaster.clusters.kubernetes.settings import Settings
from trainmaster.clusters.records import alone, folder_of
from trainmaster.core.errors import EngineFailed

__all__ = ["Cluster", "Daemon", "Settings", "clusters", "down", "find", "folder_of", "up"]

Say = Callable[[str], None]
_TRIES = 5  # of a start, each with another network or other ports, where one was taken at the last moment
_OFFSETS = {name: at for at, name in enumerate(conf.PORTS)}


def clusters() -> list[Cluster]:
    """The clusters that there are, by name."""
    return records.every(Cluster.read)


def find(name: str = "kubernetes") -> Cluster:
    """A cluster by name. NotFound where there is none."""
    return records.find(Cluster.read, name, KIND)


def up(
    settings: Settings, name: str = "kubernetes", folder: Path | None = None, say: Say = lambda line: None
) -> Cluster:
    """Start a cluster and return when it is ready; `folder` instead of its place in the state directory. `say` hears what takes long.

    BadInput where something is missing, or where the cluster is there with other settings; EngineFailed where a daemon ends.
    """
    return up_or_found(settings, name, folder, say)[0]


def up_or_found(
    settings: Settings, name: str = "kubernetes", folder: Path | None = None, say: Say = lambda line: None
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
        if there is not None and there.ready and (there.first.alive or there.place.plain):
            say(f"the cluster {there.name} is {there.state}; starting what is dead")
            there.revive()
            return there, True
        needs.check(settings)
        if there is not None:
            say(f"the cluster {there.name} is {there.state}; making it anew")
            there.stop()
        built = binaries.binaries(say)
        made = images.images(say) if settings.nodes else ()
        for left in reversed(range(_TRIES)):
            try:
                return _started(folder, settings, built, made), True
            except EngineFailed as error:
                if not left or not any(word in error.message for word in ("is taken", "address already in use")):
                    raise
    raise AssertionError("the last try returns or raises")


def down(name: str = "kubernetes", folder: Path | None = None) -> bool:
    """End a cluster, whatever is left of it, and remove its directory; False where there was none."""
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
            there.stop()
        else:
            boundary.close(Place(folder, folder, PLAIN, {}))
            daemons.remove(folder)
    return True


def _started(folder: Path, settings: Settings, built: Path, made: tuple[images.Image, ...]) -> Cluster:
    """A cluster in `folder`, ready. Where that fails nothing of it runs, and of its files the logs are left, which the error names."""
    if settings.nodes:
        place = Place(folder, built, boundary.free_network(os.getpid() % 64), conf.PORTS)
    else:
        taken = {port for other in clusters() if other.place.plain for port in other.place.ports.values()}
        place = Place(folder, built, PLAIN, ports.choose(taken, offsets=_OFFSETS))
    cluster = Cluster(folder.name, place, settings)
    try:
        for part in ("logs", "tmp"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        cluster.save()
        cluster.tokens = certificates.make(folder / "pki", place.addresses, settings.nodes)
        conf.write(place, settings, cluster.tokens, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        cluster.save()
        if settings.nodes:
            cluster.first = boundary.open_for(place, settings.nodes)
            cluster.save()
        cluster.start(made)
        cluster.ready = True
        cluster.save()
    except BaseException as error:
        cluster.stop(keep="logs" if isinstance(error, EngineFailed) else "")
        raise
    return cluster
