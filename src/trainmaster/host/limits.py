"""Control groups: where this process is in them, and a memory limit of a program's own.

Both versions are served. In version 1 a group may have both processes and child groups. In version 2 it may not (the root excepted), so a
new group is made beside ours, in the nearest ancestor that hands the memory controller down. A trial group shows whether this is allowed.
Each new group is noted as a link `<runtime>/<job>/group.<name>`, so that the sweep finds it when its maker is gone.
Facts: the kernel's Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time
from pathlib import Path

from trainmaster.host import places, processes

_count = itertools.count(1)


def ancestry(controller: str) -> list[Path]:
    """Return the visible folders of this process's group for a controller and of every group above it, nearest first."""
    root, own = _mounted(controller)
    if root is None:
        return []
    folder = root / own.lstrip("/")
    return [
        directory for directory in (folder, *folder.parents) if directory.is_relative_to(root) and directory.is_dir()
    ]


def _mounted(controller: str) -> tuple[Path | None, str]:
    """Return where the hierarchy of a controller is mounted, and this process's group below that place."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None, ""
    by_name = {name: path for _, names, path in (line.split(":", 2) for line in groups) for name in names.split(",")}
    for mount in mounts:
        mount_fields, _, type_fields = mount.partition(" - ")
        kind, _, options = type_fields.split()[:3]
        visible_root, point = mount_fields.split()[3:5]
        if kind == "cgroup" and controller in options.split(",") and controller in by_name:
            return Path(point), _below(visible_root, by_name[controller])
        if kind == "cgroup2" and controller not in by_name and "" in by_name and _offers(Path(point), controller):
            return Path(point), _below(visible_root, by_name[""])
    return None, ""


def _offers(folder: Path, controller: str) -> bool:
    return controller in (folder / "cgroup.controllers").read_text().split()


def _below(visible_root: str, path: str) -> str:
    """Return a group's path below the mounted part of the hierarchy."""
    if path.startswith("/.."):  # we were moved out of our own namespace
        return ""
    if visible_root == "/":
        return path
    return path.removeprefix(visible_root) if path.startswith(visible_root) else ""


class MemoryLimit:
    """A memory limit is a control group for the processes put into it. `create` returns None where none can be made."""

    def __init__(self, folder: Path, limit: int, note: Path | None = None) -> None:
        self.folder, self.limit, self._note = folder, limit, note
        self._unified = (folder / "memory.max").exists()

    @classmethod
    def create(cls, job: str, task: str, limit: int) -> MemoryLimit | None:
        """Make a group limited to `limit` bytes, swap included, for one attempt of a task."""
        parent = _parent()
        if parent is None:
            return None
        name = f"trainmaster-{job}.{task.replace(':', '-')}.{os.getpid()}.{next(_count)}"
        note = places.job_dir(job) / f"group.{name}"
        note.symlink_to(parent / name)
        try:
            (parent / name).mkdir()
            group = cls(parent / name, limit, note)
            group._restrict()
            return group
        except OSError:  # the parent's own limits (of groups, of memory) allow no more
            cls(parent / name, limit, note).remove()
            return None

    def _restrict(self) -> None:
        if self._unified:
            self._write("memory.max", self.limit)
            self._write("memory.swap.max", 0, optional=True)
            self._write("memory.oom.group", 1, optional=True)
        else:
            self._write("memory.limit_in_bytes", self.limit)
            self._write("memory.memsw.limit_in_bytes", self.limit, optional=True)

    def _write(self, name: str, value: int, optional: bool = False) -> None:
        if optional and not (self.folder / name).exists():  # a kernel without swap accounting, or before 4.19
            return
        (self.folder / name).write_text(str(value))

    def add(self, pid: int = 0) -> None:
        """Put a process in, 0 being the caller: what it and its later children use counts. Safe between fork and exec."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def processes(self) -> list[int]:
        """Return every process in the group, whoever its parents are."""
        try:
            pids = [int(line) for line in (self.folder / "cgroup.procs").read_text().split()]
        except FileNotFoundError:
            return []
        return [pid for pid in pids if pid > 1]  # 0 is one of another process-id namespace, and many to kill(2)

    def exceeded(self) -> dict[str, int] | None:
        """Return {"used": the peak, "limit": the limit} in bytes once the kernel has killed a process for the limit; else None."""
        events = (self.folder / ("memory.events" if self._unified else "memory.oom_control")).read_text()
        if not int(dict(line.split() for line in events.splitlines()).get("oom_kill", 0)):
            return None
        peak = "memory.peak" if self._unified else "memory.max_usage_in_bytes"
        return {"used": self._number(peak) if (self.folder / peak).exists() else self.limit, "limit": self.limit}

    def _number(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def kill(self) -> None:
        """Kill every process in the group."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def remove(self, within: float = 5.0) -> bool:
        """Kill what is left inside and remove the group. Return False if it is not empty after `within` seconds."""
        deadline = time.monotonic() + within
        while self.folder.exists():
            self.kill()
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                break
            except OSError:  # busy: a killed process takes a moment to leave
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.005)
        if self._note is not None:
            self._note.unlink(missing_ok=True)
        return True


def remove_groups(job: str, maker: int | None = None) -> None:
    """Remove the groups of a dead job, or only those of one dead agent (`maker`), with all that runs in them."""
    for note in (places.runtime_dir() / job).glob(f"group.*.{maker or '*'}.*"):
        MemoryLimit(note.readlink(), 0, note).remove()


def remove_orphaned_groups(job: str) -> None:
    """Remove the groups whose makers, agents, died while nobody looked after the job."""
    for note in (places.runtime_dir() / job).glob("group.*"):
        if processes.start_time(int(note.name.split(".")[-2])) is None:
            MemoryLimit(note.readlink(), 0, note).remove()


@functools.cache
def _parent() -> Path | None:
    """Return the group in which this process may make limited groups."""
    for folder in ancestry("memory"):
        unified = (folder / "cgroup.subtree_control").exists()
        if unified and "memory" not in (folder / "cgroup.subtree_control").read_text().split():
            continue
        trial = folder / f"trainmaster-trial.{os.getpid()}"
        try:
            trial.mkdir()
        except OSError:  # not ours to write: perhaps one above is delegated to us (version 2)
            continue
        try:
            limit = trial / ("memory.max" if unified else "memory.limit_in_bytes")
            limit.write_text(str(1 << 30))
            return folder
        except OSError:
            continue
        finally:
            trial.rmdir()
    return None
