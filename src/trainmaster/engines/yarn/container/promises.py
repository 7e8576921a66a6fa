"""Compare a container of YARN with what was asked for.

A NodeManager without the docker runtime ignores the variables that ask for an image, and starts the command on its host. Inside an image,
the container's own directories are mounts of the node's (`DockerLinuxContainerRuntime.launchContainer`); on the host they are ordinary
folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from trainmaster.engines.promises import Broken

_VARIABLES = "YARN_CONTAINER_RUNTIME_DOCKER_"
_FOLDERS = ("LOCAL_DIRS", "LOG_DIRS", "PWD")  # variables that name folders of the container
_ESCAPED = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}  # proc(5), mountinfo


def broken(environ: Mapping[str, str], mounts: set[str] | None, node: str) -> Iterator[Broken]:
    """Yield the promises that the container breaks. `environ`: the variables of its start; `mounts`: where something is mounted;
    None where that is not known.
    """
    if mounts is None or not (image := environ.get(f"{_VARIABLES}IMAGE")):
        return
    folders = {folder for name in _FOLDERS for folder in environ.get(name, "").split(",") if folder}
    if not mounts & (folders | {os.path.realpath(folder) for folder in folders}):
        yield "image", f"the image {image} was asked for, and the container runs on the host {node}, without any image"
        return
    for mount in filter(None, environ.get(f"{_VARIABLES}MOUNTS", "").split(",")):
        target = mount.split(":")[1].rstrip("/") if ":" in mount else mount
        if not mounts & {target, os.path.realpath(target)}:  # a link of the image may lead there: /var/run
            yield "mounts", f"{mount} was asked for, and nothing is mounted at {target}"


def mount_points() -> set[str] | None:
    """Return the places where something is mounted, as this process sees them; None where the system does not say."""
    try:
        with open("/proc/self/mountinfo") as file:
            points = [line.split(" ")[4] for line in file]
    except OSError:
        return None
    for escape, character in _ESCAPED.items():
        points = [point.replace(escape, character) for point in points]
    return set(points)
