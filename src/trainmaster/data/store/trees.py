"""A tree is a file or directory of this machine as a set of files with sizes and times, to be uploaded, compared or watched.

Paths are relative to the root, with "/"; where the root is itself a file, its one path is its name. Links are
followed, for most stores have none, as far as they stay in the folder that holds the root: a program's working
directory. A link that leads out of that folder could name any file of the machine. It is left out and named, as are
sockets, pipes, devices, links to nothing, and a link to a folder that the path has come through. `keep_links` keeps
those that stay inside the root as links. A root that is itself such a link is refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Mapping

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.plain import Plain
from trainmaster.log.storage import is_inside

_NAMED = 5  # left-out entries in one message


@attrs.frozen(slots=True, eq=False, repr=False)
class Leaf(Plain):
    """A file. `link`: its target, where it is kept as a link; its size is 0 then.

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
        """Return the facts that differ once the file was changed."""
        return self.size, self.mtime_ns, self.link


@attrs.frozen(slots=True, eq=False, repr=False)
class Tree(Plain):
    """All files below a root. `root` is the folder that the paths are relative to. `left_out`: path -> what it is."""

    root: str
    leaves: dict[str, Leaf]
    folders: tuple[str, ...] = ()  # those with nothing in them
    left_out: dict[str, str] = attrs.field(factory=dict)
    single: bool = False  # the root is a file

    @property
    def size(self) -> int:
        return sum(leaf.size for leaf in self.leaves.values())

    @property
    def versions(self) -> dict[str, tuple[int, int, str]]:
        return {path: leaf.version for path, leaf in self.leaves.items()}

    def is_same(self, other: Tree) -> bool:
        """Tell whether both have the same files, none of them changed, and leave out the same."""
        return self.versions == other.versions and self.left_out == other.left_out

    def at(self, path: str) -> str:
        return os.path.join(self.root, path)


def scan(root: str, keep_links: bool = False) -> Tree | None:
    """Return the tree at `root`; None where there is nothing. Raises BadInput for a root that leads out of the folder that holds it."""
    root = os.path.abspath(root)
    boundary = os.path.realpath(os.path.dirname(root))
    try:
        status = os.stat(root)
    except FileNotFoundError:
        return None
    if os.path.islink(root) and not is_inside(root, boundary):
        raise BadInput(
            f"{root} is a link that leads out of its folder, to {os.path.realpath(root)}, and is not followed", place=root,
            mend="write to the path itself, or copy there what is to be kept", anchor="unsafe-path",
        )  # fmt: skip
    if not stat.S_ISDIR(status.st_mode):
        parent, name = os.path.split(root)
        if not stat.S_ISREG(status.st_mode):
            return Tree(parent, {}, left_out={name: _kind(status.st_mode)}, single=True)
        return Tree(parent, {name: _leaf(name, status)}, single=True)
    leaves: dict[str, Leaf] = {}
    empty: list[str] = []
    left_out: dict[str, str] = {}
    folders = [""]
    for folder in folders:
        try:
            with os.scandir(os.path.join(root, folder)) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
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
                if (why := _oddity(entry, boundary)) or not entry.is_dir():
                    if why:
                        left_out[path] = why
                    else:
                        leaves[path] = _leaf(path, entry.stat())
                else:
                    folders.append(path)
            except FileNotFoundError:
                continue
    return Tree(root, leaves, tuple(empty), left_out)


def unchanged(path: str, leaf: Leaf) -> bool:
    """Tell whether the file at `path` is still as it was when `leaf` was seen."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    return (status.st_size, status.st_mtime_ns) == (leaf.size, leaf.mtime_ns)


def naming(left_out: Mapping[str, str]) -> str:
    """Name the left-out entries in one line: the first few, and how many more there are."""
    named = [f"{path} ({why})" for path, why in list(left_out.items())[:_NAMED]]
    more = len(left_out) - len(named)
    return ", ".join(named) + (f" and {more:,} more" if more else "")


def _oddity(entry: os.DirEntry[str], boundary: str) -> str:
    """Say why an entry is left out; "" for a file, or a folder to look into. Raises FileNotFoundError where it is gone."""
    if entry.is_symlink():
        if not os.path.exists(entry.path):
            return "a link to nothing"
        if not is_inside(entry.path, boundary):
            return "a link that leads out of the working directory"
        if entry.is_dir() and leads_back(entry.path):
            return "a link to a folder above it"
    if entry.is_dir() or entry.is_file():
        return ""
    return _kind(entry.stat().st_mode)


def _kind(mode: int) -> str:
    """Name the kind of an entry that is neither a file nor a folder."""
    return {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}.get(stat.S_IFMT(mode), "a device")


def leads_back(path: str) -> bool:
    """Tell whether a link to a folder leads to a folder that its own path goes through."""
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
    """Return the target of a link, if it is a relative path inside the root; else ""."""
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
