"""The place where an attempt's program runs: its directory, its ports, and the files and variables that describe them.

    share    the submitter's own directory
    copy     a directory of the task's own, filled once from the archive of `files`

A task's own directory serves all its attempts in turn, but a file that one attempt leaves at an output's place would be committed as the
next one's. So each attempt starts with the same content there as the first: mostly nothing, else files from the archive or from the role's
`prepare` command. A copy of these files is kept next to the output's place, `.NAME.begun`. In a shared directory nothing is removed, and no
link to a mounted input is made: the directory belongs to the user and to other jobs, and the program gets the path itself.

Files that the framework needs (a list of peers, ...) go into a private folder of the attempt, or, where their names begin with "./", into
the working directory. Variables may name `{files}`, `{cwd}`, `{work}` (the task's own directory, also where its working directory is the
submitter's), `{address}` and `{port:NAME}`, which only the agent knows.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any

from trainmaster.agent.attempt.failure import AttemptFailed
from trainmaster.agent.input.stdin import Stdin
from trainmaster.core.errors import BadInput
from trainmaster.data.store.trees import remove

_MEMORIES = 3  # as many as `runtime.states.memory_slots` uses
_PLACE = re.compile(r"\{(files|cwd|work|address|port:[A-Za-z0-9_.-]+)\}")


class Workplace:
    """One task's place in this container. `work` is its own directory, `private` its folder for our files, `stdin_record` as in `Stdin`."""

    def __init__(self, work: str, private: str, stdin_record: str = "") -> None:
        self.work, self.private = work, private
        self.stdin = Stdin(f"{private.removesuffix('.d')}.stdin", stdin_record)
        self.cwd = work
        self.attempt = 0
        self.ports: dict[str, int] = {}
        self._memory: list[int] = []
        self._reserved: Any = None

    @property
    def shared(self) -> bool:
        """Tell whether the programs run in the submitter's own directory."""
        return self.cwd != self.work

    def furnish(self, order: Mapping[str, Any]) -> None:
        """Make the working directory of a `prepare` order. Blocks; called in a thread."""
        os.makedirs(self.private, mode=0o700, exist_ok=True)
        if order["workdir"] == "share":
            self.cwd = order["cwd"] or self.work
            if not os.path.isdir(self.cwd):
                raise AttemptFailed("staging-failed", {"detail": f"the working directory {self.cwd} is not there"})
            return
        self.cwd = self.work
        os.makedirs(self.work, exist_ok=True)
        archive = order["archive"] or ""
        note = os.path.join(self.private, "filled")
        for path in self._places(order):
            self._put_aside(path)
            if os.path.lexists(_snapshot_path(path)):
                _copy(_snapshot_path(path), path)
        if _read_note(note) == archive:
            return
        _unpack(archive, self.work)
        self.begun(order)
        with open(note, "w", encoding="utf-8") as file:
            file.write(archive)

    def begun(self, order: Mapping[str, Any]) -> None:
        """Copy the files now at the outputs' places, before any program has run: each attempt will find them there. Blocks."""
        for path in self._places(order):
            draft = f"{_snapshot_path(path)}.part"
            remove(draft)
            if os.path.lexists(path):
                _copy(path, draft)
                remove(_snapshot_path(path))
                os.rename(draft, _snapshot_path(path))

    def _places(self, order: Mapping[str, Any]) -> list[str]:
        """Return the paths where the program writes outputs, below a directory that is the task's own."""
        if order["workdir"] == "share":
            return []
        outputs = [output["local"] for output in order["outputs"].values() if output["as"] != "stream"]
        paths = [os.path.normpath(os.path.join(self.work, local)) for local in outputs]
        own = os.path.join(os.path.realpath(self.work), "")
        return [
            path
            for path in paths
            if path != self.work and os.path.join(os.path.realpath(os.path.dirname(path)), "").startswith(own)
        ]

    def _put_aside(self, path: str) -> None:
        """Remove a path in one step: even if it cannot be deleted, nothing of it stays in place."""
        if os.path.lexists(path):
            folder, name = os.path.split(path)
            aside = os.path.join(folder, f".{name}.before-{self.attempt}")
            os.rename(path, aside)
            with contextlib.suppress(OSError):  # it does no harm there
                remove(aside)

    def reserve(self, ports: Mapping[str, int]) -> dict[str, int]:
        """Reserve ports and return them by name. They are new for each attempt, so that it cannot meet leftovers of an earlier one. 0: any.

        A task that restarts alone requests the ports it had, by which its peers know it; they are still reserved.
        """
        if self.ports and dict(ports) == self.ports:
            return self.ports
        from trainmaster.host.ports import Ports

        previous, self._reserved = self._reserved, None
        free = [name for name, number in ports.items() if not number]
        if free:
            self._reserved = Ports()
            self._reserved.take(len(free))
        if previous is not None:
            previous.release()
        chosen = dict(zip(free, self._reserved.numbers if self._reserved is not None else (), strict=True))
        self.ports = {name: number or chosen[name] for name, number in ports.items()}
        return self.ports

    def memory(self) -> str:
        """Return the paths of memory that outlives a program and ends with this process: for the states that it saves.

        A file of memfd_create(2) is opened by its path in /proc. /dev/shm is often limited to 64 MiB in a container, and keeps what
        a killed agent leaves there.
        """
        if not self._memory:
            self._memory = [os.memfd_create("trainmaster-checkpoint", os.MFD_CLOEXEC) for _ in range(_MEMORIES)]
        return ":".join(f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in self._memory)

    def release(self) -> None:
        self.stdin.close()
        while self._memory:
            os.close(self._memory.pop())
        if self._reserved is not None:
            self._reserved.release()
            self._reserved = None

    def write(self, files: Mapping[str, str], address: str) -> None:
        """Write the files that the framework needs; a name cannot leave its folder."""
        for name, text in files.items():
            folder = self.cwd if name.startswith("./") else self.files
            path = os.path.normpath(os.path.join(folder, name))
            if not path.startswith(os.path.join(os.path.normpath(folder), "")):
                raise BadInput(f"the file {name!r} would leave its folder", anchor="storage-path")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.filled(text, address))

    @property
    def files(self) -> str:
        return os.path.join(self.private, f"files-{self.attempt}")

    def filled(self, text: str, address: str) -> str:
        """Return `text` with its places filled in."""

        def place(match: re.Match[str]) -> str:
            name = match[1]
            if name.startswith("port:"):
                return str(self.ports[name[5:]]) if name[5:] in self.ports else match[0]
            return {"files": self.files, "cwd": self.cwd, "work": self.work, "address": address}[name]

        return _PLACE.sub(place, text) if "{" in text else text


def _read_note(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _snapshot_path(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.begun")


def _copy(source: str, target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source) and not os.path.islink(source):
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def _unpack(archive: str, folder: str) -> None:
    """Unpack an archive that we packed. A member that would leave the folder is refused where Python can do so (from 3.11.4 on)."""
    import gzip
    import tarfile
    import zlib

    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    try:
        with tarfile.open(archive) as packed:
            packed.extractall(folder, **options)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        figures = {"detail": f"{archive} is damaged: {error}", "mend": "tm retry packs it anew"}
        raise AttemptFailed("staging-failed", figures) from error


def variable(name: str) -> str:
    """Return a name in the form that variables use: TRAINMASTER_INPUT_<NAME>."""
    return re.sub(r"[^A-Za-z0-9]", "_", name).upper()
