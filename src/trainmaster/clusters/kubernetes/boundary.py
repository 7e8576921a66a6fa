"""The boundary around a cluster with real nodes: mount, PID and network namespaces of its own, whose first process holds it together.

Everything that a cluster would leave on a machine (mounts, links, rules, sysctls, sockets in /run) is inside, and goes as that process
ends, however it ends: the kernel kills all of the PID namespace, and what nobody holds any more is no more. Outside are the
cluster's directory, the control groups of its nodes, and one end of the link by which pods reach this machine, and nothing else.

The link's number is claimed by its name, which the kernel gives once. It goes with the network namespace, a moment after that.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainmaster.clusters import daemons
from trainmaster.clusters.daemons import Started
from trainmaster.clusters.kubernetes.conf import PODS, SERVICES, Place
from trainmaster.core.errors import EngineFailed
from trainmaster.host import linux

SCRIPT = Path(__file__).with_name("boundary.sh")
CONTROLLERS = Path("/sys/fs/cgroup")
_NETWORKS = 512  # of 256 addresses, in 198.18.0.0/15
_PATIENCE = 20.0  # s
_PAUSE = 0.02
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
# The shell says its own pid, as the namespace has it.
_START = 'umask 022; cd /; echo $$; log=$1; shift; exec "$@" >>"$log" 2>&1'


def link(network: int) -> str:
    """What this machine's end of the link is called."""
    return f"tmkube{network}"


def free_network(begin: int = 0) -> int:
    """A number whose network this machine has no address or route of. Whoever is faster may take it: see `open_for`."""
    said = (
        _run(["ip", "-4", "route", "show", "table", "all"])
        + _run(["ip", "-4", "-o", "addr"])
        + _run(["ip", "-o", "link"])
    )
    numbers: list[int] = [*range(begin, _NETWORKS), *range(begin)]
    for number in numbers:
        if f"198.{18 + number // 256}.{number % 256}." not in said and f" {link(number)}@" not in said:
            return number
    raise EngineFailed(
        "no network in 198.18.0.0/15 is free", mend="see what is there: ip addr", anchor="cluster-failed"
    )


def open_for(place: Place, nodes: int) -> Started:
    """Open it; returns its first process. EngineFailed with `taken` in its message where another has the number of its network."""
    log = place.folder / "logs" / "boundary.log"
    command = [
        "unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child=SIGKILL", "--mount-proc", "--propagation", "private",
        "/bin/sh", str(SCRIPT), str(place.folder), str(place.binaries),
    ]  # fmt: skip
    (place.folder / "prepared").unlink(missing_ok=True)
    outer = daemons.start(command, place.folder, log, daemons.environment(place.folder, {"PATH": _PATH}))
    end = time.monotonic() + _PATIENCE
    while not (place.folder / "prepared").exists():
        if not outer.alive or time.monotonic() > end:
            raise EngineFailed(
                "the cluster's namespaces could not be made:\n  " + "\n  ".join(daemons.last_words(log)),
                place=str(log), anchor="cluster-failed",
            )  # fmt: skip
        time.sleep(_PAUSE)
    (first,) = [one for one in linux.everyone() if one.parent == outer.pid]
    found = Started(first.pid, first.start)
    _linked(place, found, nodes)
    for number in range(1, nodes + 1):
        _make_group(place.group(number))
    return found


def _linked(place: Place, first: Started, nodes: int) -> None:
    """The link between this machine and the cluster, the only way out of it, and into it."""
    name = link(place.network)
    made = subprocess.run(
        ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(first.pid)],
        capture_output=True, text=True, check=False, env={"PATH": _PATH},
    )  # fmt: skip
    if made.returncode != 0:
        raise EngineFailed(
            f"the link {name} is taken, or could not be made: {made.stderr.strip()}", anchor="cluster-failed"
        )
    _run(["ip", "addr", "add", f"{place.machine}/24", "dev", name])
    _run(["ip", "link", "set", name, "alias", place.key, "up"])
    inside = [
        *(f"ip addr add {address}/24 dev eth0" for address in (place.ip, *map(place.node, range(1, nodes + 1)))),
        "ip link set eth0 up",
        # Service addresses are turned into pods' before they leave, and must have a way to leave by.
        f"ip route add {SERVICES} dev eth0 src {place.ip}",
        # Pods see each other's own addresses, and are the cluster's to this machine.
        f"iptables -w -t nat -A POSTROUTING -s {PODS} ! -d {PODS} -j MASQUERADE",
    ]
    run(first, ["/bin/sh", "-ec", "\n".join(inside)])


def enter(first: Started) -> list[str]:
    """What to put before a command that shall run inside."""
    return ["nsenter", "--target", str(first.pid), "--mount", "--pid", "--net", "--ipc", "--"]


def run(first: Started, command: Sequence[str], told: int = subprocess.DEVNULL) -> str:
    """Run a command inside, with the open file `told` to read; what it says. EngineFailed where it fails."""
    return _run([*enter(first), *command], told)


def start(first: Started, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> Started:
    """Start a daemon inside, a child of the first process. `log` as it is seen inside."""
    said = subprocess.run(
        [*enter(first), "setsid", "--fork", "/bin/sh", "-c", _START, "sh", str(log), *command],
        env={**environ, "PATH": _PATH}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True,
    ).stdout  # fmt: skip
    wanted = int(said)
    for process in linux.everyone():
        if process.parent == first.pid and _inner(process.pid) == wanted:
            return Started(process.pid, process.start)
    return Started(0, -1)  # it has ended


def _inner(pid: int) -> int:
    """A process's id in the namespace that is deepest."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def close(place: Place) -> None:
    """End all that is inside, and remove what is outside. However far it came."""
    daemons.stop([], place.folder)
    end = time.monotonic() + _PATIENCE
    while (left := groups(place)) and time.monotonic() < end:
        for path in left:
            try:
                path.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # what was in it has not quite ended
                time.sleep(_PAUSE)
                break
    while _link_is_there(place) and time.monotonic() < end:
        time.sleep(_PAUSE)


def _link_is_there(place: Place) -> bool:
    """Whether the link is there, and no other cluster's of the same number."""
    try:
        return Path(f"/sys/class/net/{link(place.network)}/ifalias").read_text().strip() == place.key
    except OSError:
        return False


# -- control groups --


def _hierarchies() -> list[Path]:
    """The roots of control groups: one of version 2, or those of version 1."""
    if (CONTROLLERS / "cgroup.controllers").exists():
        return [CONTROLLERS]
    return [
        path
        for path in CONTROLLERS.iterdir()
        if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists()
    ]


def _make_group(name: str) -> None:
    """A group below the root, in every hierarchy, from which others can be made."""
    for root in _hierarchies():
        group = root / name.lstrip("/")
        group.mkdir(exist_ok=True)
        if root.name == "cpuset":  # version 1: a new one has neither cores nor memory
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((root / file).read_text())
        elif root == CONTROLLERS:
            offered = " ".join(f"+{name}" for name in (root / "cgroup.controllers").read_text().split())
            for each in (root, group):
                (each / "cgroup.subtree_control").write_text(offered)


def groups(place: Place, number: int = 0) -> list[Path]:
    """The directories of the cluster's control groups, or of a node's, the inner ones first."""
    wanted = place.group(number).lstrip("/") if number else place.group(0).lstrip("/")[:-1] + "*"
    found: list[Path] = []
    for root in _hierarchies():
        for top in root.glob(wanted):
            found += [Path(path) for path, _, _ in os.walk(top, topdown=False)]
    return found


def members(place: Place, number: int, containing: str = "") -> list[int]:
    """The processes in a node's control groups, those whose path contains a word."""
    found: set[int] = set()
    for path in groups(place, number):
        if containing in str(path):
            try:
                found.update(map(int, (path / "cgroup.procs").read_text().split()))
            except OSError:  # it was removed meanwhile
                continue
    return sorted(found)


def _run(command: Sequence[str], told: int = subprocess.DEVNULL) -> str:
    done = subprocess.run(
        command,
        stdin=told,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": _PATH},
    )
    if done.returncode != 0:
        raise EngineFailed(f"{' '.join(command)} failed: {done.stderr.strip()}", anchor="cluster-failed")
    return done.stdout
