"""A file or directory of this machine as a set of files with sizes and times: what is uploaded, compared, watched.

Paths are relative to the root, with "/"; where the root is itself a file, its one path is its name. Links are
followed, for most stores have none: a link to a folder that the path has come through is left out. `keep_links` keeps
those that stay inside the root as links. Sockets, pipes, devices and links to nothing are left out and named.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

import attrs


@attrs.frozen(slots=True)
class Leaf:
    """A file. `link`: where it leads, where it is kept as a link; its size is 0 then.

    `inode` and `ctime_ns` tell that the name was given to another file.
    """

    path: str
    size: int
    mtime_ns: int
    mode: int = 0o644
    link: str = ""
    inode: int = 0
    ctime_ns: int = 0

    @property
    def version(self) -> tuple[int, int, str]:
        """What differs once the file was changed."""
        return self.size, self.mtime_ns, self.link


@attrs.frozen(slots=True)
class Tree:
    """What is below a root. `root` is the folder that the paths are relative to."""

    root: str
    leaves: dict[str, Leaf]
    folders: tuple[str, ...] = ()  # those with nothing in them
    left_out: tuple[str, ...] = ()
    single: bool = False  # the root is a file

    @property
    def size(self) -> int:
        return sum(leaf.size for leaf in self.leaves.values())

    @property
    def versions(self) -> dict[str, tuple[int, int, str]]:
        return {path: leaf.version for path, leaf in self.leaves.items()}

    def at(self, path: str) -> str:
        return os.path.join(self.root, path)


def scan(root: str, keep_links: bool = False) -> Tree | None:
    """What is at `root` now; None where nothing is."""
    root = os.path.abspath(root)
    try:
        status = os.stat(root)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        parent, name = os.path.split(root)
        return Tree(parent, {name: _leaf(name, status)}, single=True)
    leaves: dict[str, Leaf] = {}
    empty, left_out = [], []
    folders = [""]
    for folder in folders:
        try:
            with os.scandir(os.path.join(root, folder)) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:
            continue  # removed since
        if not entries and folder:
            empty.append(folder)
        for entry in entries:
            path = f"{folder}/{entry.name}" if folder else entry.name
            try:
                if keep_links and entry.is_symlink() and (link := _inner_link(root, folder, entry.path)):
                    leaves[path] = Leaf(path, 0, 0, link=link)
                    continue
                if entry.is_dir():
                    if not entry.is_symlink() or not leads_back(entry.path):
                        folders.append(path)
                    continue
                if not entry.is_file():
                    if os.path.lexists(entry.path):
                        left_out.append(path)
                    continue
                leaves[path] = _leaf(path, entry.stat())
            except FileNotFoundError:
                continue
    return Tree(root, leaves, tuple(empty), tuple(left_out))


def leads_back(path: str) -> bool:
    """Whether a link to a folder leads to one that the path has come through."""
    target, above = os.path.realpath(path), os.path.dirname(path)
    while above != os.path.dirname(above):
        if os.path.realpath(above) == target:
            return True
        above = os.path.dirname(above)
    return target == above


def _leaf(path: str, status: os.stat_result) -> Leaf:
    mode = status.st_mode & 0o777
    return Leaf(path, status.st_size, status.st_mtime_ns, mode, inode=status.st_ino, ctime_ns=status.st_ctime_ns)


def _inner_link(root: str, folder: str, path: str) -> str:
    """Where a link leads, if that is a relative path inside the root."""
    target = os.readlink(path)
    if os.path.isabs(target):
        return ""
    place = os.path.normpath(os.path.join(folder, target))
    return "" if place == ".." or place.startswith("../") or not os.path.exists(os.path.join(root, place)) else target


def remove(path: str) -> None:
    """Remove a file, a link, or a folder with all below it, where there is one; another task may be at it as well."""
    while os.path.lexists(path):
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
