"""The boundary around a cluster with real nodes: mount, PID and network namespaces of its own, whose first process holds it together.

Everything that a cluster would leave on a machine (mounts, links, rules, sysctls, sockets in /run) is inside, and goes when that process
ends, however it ends: the kernel kills the whole PID namespace, and frees the namespaces that no process holds any more. Outside are only
the cluster's directory, the control groups of its nodes, and one end of the link by which pods reach this machine.

A cluster claims its network's number by the link's name, which the kernel gives once. The link goes a moment after the network namespace.
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
# The shell prints its own pid, as the namespace numbers it.
_START = 'umask 022; cd /; echo $$; log=$1; shift; exec "$@" >>"$log" 2>&1'


def link(network: int) -> str:
    """Return the name of this machine's end of the link."""
    return f"tmkube{network}"


def free_network(begin: int = 0) -> int:
    """Return a number of whose network this machine has no address or route. Another cluster may still claim it: see `open_for`."""
    listing = (
        _run(["ip", "-4", "route", "show", "table", "all"])
        + _run(["ip", "-4", "-o", "addr"])
        + _run(["ip", "-o", "link"])
    )
    numbers: list[int] = [*range(begin, _NETWORKS), *range(begin)]
    for number in numbers:
        if f"198.{18 + number // 256}.{number % 256}." not in listing and f" {link(number)}@" not in listing:
            return number
    raise EngineFailed(
        "no network in 198.18.0.0/15 is free", mend="see what is there: ip addr", anchor="cluster-failed"
    )


def open_for(place: Place, nodes: int) -> Started:
    """Open the boundary and return its first process.

    Raises EngineFailed, with `taken` in its message, where another cluster has the number of its network.
    """
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
    (child,) = [process for process in linux.everyone() if process.parent == outer.pid]
    first = Started(child.pid, child.start)
    _make_link(place, first, nodes)
    for number in range(1, nodes + 1):
        _make_group(place.group(number))
    return first


def _make_link(place: Place, first: Started, nodes: int) -> None:
    """Make the link between this machine and the cluster, the only way out of it and into it."""
    name = link(place.network)
    done = subprocess.run(
        ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(first.pid)],
        capture_output=True, text=True, check=False, env={"PATH": _PATH},
    )  # fmt: skip
    if done.returncode != 0:
        raise EngineFailed(
            f"the link {name} is taken, or could not be made: {done.stderr.strip()}", anchor="cluster-failed"
        )
    _run(["ip", "addr", "add", f"{place.machine}/24", "dev", name])
    _run(["ip", "link", "set", name, "alias", place.key, "up"])
    inside = [
        *(f"ip addr add {address}/24 dev eth0" for address in (place.ip, *map(place.node, range(1, nodes + 1)))),
        "ip link set eth0 up",
        # Service addresses are turned into pods' addresses before packets leave, and need a route to leave by.
        f"ip route add {SERVICES} dev eth0 src {place.ip}",
        # Pods see each other's own addresses; this machine sees the cluster's address.
        f"iptables -w -t nat -A POSTROUTING -s {PODS} ! -d {PODS} -j MASQUERADE",
    ]
    run(first, ["/bin/sh", "-ec", "\n".join(inside)])


def enter(first: Started) -> list[str]:
    """Return the words that, before a command, make it run inside."""
    return ["nsenter", "--target", str(first.pid), "--mount", "--pid", "--net", "--ipc", "--"]


def run(first: Started, command: Sequence[str], stdin: int = subprocess.DEVNULL) -> str:
    """Run a command inside, with the open file `stdin` as its input; return its output. Raises EngineFailed where it fails."""
    return _run([*enter(first), *command], stdin)


def start(first: Started, command: Sequence[str], log: Path, environ: Mapping[str, str]) -> Started:
    """Start a daemon inside, a child of the first process. `log`: the path as it is seen inside."""
    printed = subprocess.run(
        [*enter(first), "setsid", "--fork", "/bin/sh", "-c", _START, "sh", str(log), *command],
        env={**environ, "PATH": _PATH}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True,
    ).stdout  # fmt: skip
    inner_pid = int(printed)
    for process in linux.everyone():
        if process.parent == first.pid and _innermost_pid(process.pid) == inner_pid:
            return Started(process.pid, process.start)
    return Started(0, -1)  # the daemon has ended


def _innermost_pid(pid: int) -> int:
    """Return a process's id in its innermost PID namespace; 0 where it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def close(place: Place) -> None:
    """End all processes inside, and remove what is outside, however far the boundary was made."""
    daemons.stop([], place.folder)
    end = time.monotonic() + _PATIENCE
    while (paths := groups(place)) and time.monotonic() < end:
        for path in paths:
            try:
                path.rmdir()
            except FileNotFoundError:
                continue
            except OSError:  # its last process has not quite ended
                time.sleep(_PAUSE)
                break
    while _has_link(place) and time.monotonic() < end:
        time.sleep(_PAUSE)


def _has_link(place: Place) -> bool:
    """Tell whether this cluster's link exists, and is not that of another cluster with the same number."""
    try:
        return Path(f"/sys/class/net/{link(place.network)}/ifalias").read_text().strip() == place.key
    except OSError:
        return False


# -- control groups --


def _hierarchies() -> list[Path]:
    """Return the roots of control groups: the one of version 2, or those of version 1."""
    if (CONTROLLERS / "cgroup.controllers").exists():
        return [CONTROLLERS]
    return [
        path
        for path in CONTROLLERS.iterdir()
        if path.is_dir() and not path.is_symlink() and (path / "cgroup.procs").exists()
    ]


def _make_group(name: str) -> None:
    """Make a group below the root, in every hierarchy, in which further groups can be made."""
    for root in _hierarchies():
        group = root / name.lstrip("/")
        group.mkdir(exist_ok=True)
        if root.name == "cpuset":  # version 1: a new group has neither cores nor memory
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((root / file).read_text())
        elif root == CONTROLLERS:
            offered = " ".join(f"+{name}" for name in (root / "cgroup.controllers").read_text().split())
            for folder in (root, group):
                (folder / "cgroup.subtree_control").write_text(offered)


def groups(place: Place, number: int = 0) -> list[Path]:
    """Return the directories of the cluster's control groups, or of a node's, the inner ones first."""
    pattern = place.group(number).lstrip("/") if number else place.group(0).lstrip("/")[:-1] + "*"
    folders: list[Path] = []
    for root in _hierarchies():
        for top in root.glob(pattern):
            folders += [Path(path) for path, _, _ in os.walk(top, topdown=False)]
    return folders


def members(place: Place, number: int, containing: str = "") -> list[int]:
    """Return the processes in those of a node's control groups whose path contains a word."""
    pids: set[int] = set()
    for path in groups(place, number):
        if containing in str(path):
            try:
                pids.update(map(int, (path / "cgroup.procs").read_text().split()))
            except OSError:  # the group was removed meanwhile
                continue
    return sorted(pids)


def _run(command: Sequence[str], stdin: int = subprocess.DEVNULL) -> str:
    done = subprocess.run(
        command,
        stdin=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": _PATH},
    )
    if done.returncode != 0:
        raise EngineFailed(f"{' '.join(command)} failed: {done.stderr.strip()}", anchor="cluster-failed")
    return done.stdout
