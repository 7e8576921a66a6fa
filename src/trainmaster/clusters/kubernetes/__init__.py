"""A Kubernetes on this machine: a real control plane, kubelets and containerd, built from Go modules and started without an installer.

A cluster is a directory, `clusters/<name>` in the state directory, and `cluster.json` in it the record by which it is found and ended.

    cluster = up(Settings(nodes=2))         # idempotent: a cluster that runs with these settings is left alone
    cluster.kubectl("get", "pods", user="edit")
    cluster.daemon("kubelet-1").kill()      # its pods go on
    cluster.kill_node(2)                    # they do not
    cluster.revive()

With real nodes a cluster needs root and lives within a boundary of its own (`boundary`), so that after its end, however it comes, the
machine is as it was before. With simulated nodes alone its processes belong to the user who starts it. `up` starts the dead daemons of a
cluster again. A cluster that was stopped as a whole is made anew, for its state is gone with its boundary. One command at a time works on a
cluster.
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
_OFFSETS = {name: offset for offset, name in enumerate(conf.PORTS)}


def clusters() -> list[Cluster]:
    """Return the existing clusters, by name."""
    return records.every(Cluster.read)


def find(name: str = "kubernetes") -> Cluster:
    """Return a cluster by name. Raises NotFound where there is none."""
    return records.find(Cluster.read, name, KIND)


def up(
    settings: Settings, name: str = "kubernetes", folder: Path | None = None, say: Say = lambda line: None
) -> Cluster:
    """Start a cluster and return when it is ready. `folder` replaces its place in the state directory; `say` reports long steps.

    Raises BadInput where something is missing, or where the cluster exists with other settings, and EngineFailed where a daemon ends.
    """
    return up_or_found(settings, name, folder, say)[0]


def up_or_found(
    settings: Settings, name: str = "kubernetes", folder: Path | None = None, say: Say = lambda line: None
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
        if existing is not None and existing.ready and (existing.first.alive or existing.place.plain):
            say(f"the cluster {existing.name} is {existing.state}; starting what is dead")
            existing.revive()
            return existing, True
        needs.check(settings)
        if existing is not None:
            say(f"the cluster {existing.name} is {existing.state}; making it anew")
            existing.stop()
        programs = binaries.binaries(say)
        node_images = images.images(say) if settings.nodes else ()
        for tries_left in reversed(range(_TRIES)):
            try:
                return _start(folder, settings, programs, node_images), True
            except EngineFailed as error:
                if not tries_left or not any(word in error.message for word in ("is taken", "address already in use")):
                    raise
    raise AssertionError("the last try returns or raises")


def down(name: str = "kubernetes", folder: Path | None = None) -> bool:
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
            boundary.close(Place(folder, folder, PLAIN, {}))
            daemons.remove(folder)
    return True


def _start(folder: Path, settings: Settings, programs: Path, node_images: tuple[images.Image, ...]) -> Cluster:
    """Start a cluster in `folder` and return it when it is ready.

    Where that fails, end its processes, and keep of its files only the logs, which the error names.
    """
    if settings.nodes:
        place = Place(folder, programs, boundary.free_network(os.getpid() % 64), conf.PORTS)
    else:
        reserved = {port for other in clusters() if other.place.plain for port in other.place.ports.values()}
        place = Place(folder, programs, PLAIN, ports.choose(reserved, offsets=_OFFSETS))
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
        cluster.start(node_images)
        cluster.ready = True
        cluster.save()
    except BaseException as error:
        cluster.stop(keep="logs" if isinstance(error, EngineFailed) else "")
        raise
    return cluster
