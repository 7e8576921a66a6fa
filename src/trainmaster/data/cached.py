"""Files and archives that many tasks use, brought to a machine once: fetched, checked, unpacked, and linked into working directories.

    <cache>/<key>/<name>     a file as it is, or the folder of an unpacked archive

`key` names the content: the digest of a local file's bytes, or URL, size and stamp of a remote one, which changes when that does. A folder
appears by a rename, so what is there is whole; of two tasks that fetch at once, the second one finds the first one's.

What an engine has brought to the container already, `brought:PATH`, is there, unpacked where it is an archive.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path

from trainmaster.core.errors import BadInput
from trainmaster.data.archives import unpack
from trainmaster.data.sources import list_input
from trainmaster.data.store.stores import local_path
from trainmaster.data.store.transfer import CHUNK, make_room, safe_path, writing
from trainmaster.log.storage import write_all

BROUGHT = "brought:"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")


def provide(given: Iterable[str], cache: str, folder: str, key: str) -> list[str]:
    """Have each `URL#NAME` (the name its last part, without an archive's ending, where there is none) at `folder`/NAME; the names. Blocks.

    `key`: of the job file, for messages. Raises BadInput or StorageFailed.
    """
    names = []
    for one in given:
        url, _, name = one.partition("#")
        place = _there(url, cache, f"{key}: {one}")
        name = name or plain(os.path.basename(url.rstrip("/")))
        target = safe_path(folder, name, f"{key}: {one}")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        draft = f"{target}.{secrets.token_hex(4)}"
        if os.path.exists(target) and not os.path.islink(target):
            raise BadInput(
                f"{name} is in the working directory already",
                place=f"{key}: {one}",
                mend="give it another #NAME",
                anchor="equal-names",
            )
        os.symlink(place, draft)
        os.replace(draft, target)
        names.append(name)
    return names


def _there(url: str, cache: str, where: str) -> str:
    """The path of what `url` names, in the cache."""
    if url.startswith(BROUGHT):
        return os.path.realpath(url.removeprefix(BROUGHT))
    found = list_input(url, where.partition(":")[0]).files
    if len(found) != 1:
        raise BadInput(f"{url} names {len(found)} files, and one is wanted", place=where, anchor="no-file")
    file = found[0]
    path = local_path(file.path)
    content = _digest(path) if path is not None else f"{file.path}\0{file.size}\0{file.stamp}"
    folder = Path(cache, hashlib.sha256(content.encode()).hexdigest())
    name = os.path.basename(file.path)
    target = folder / (plain(name) if name.endswith(ARCHIVES) else name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(folder)  # its last use, for `tm prune`
        if not target.exists():
            _fetch(file.path, file.size, str(folder / f".{name}"))
            if name.endswith(ARCHIVES):
                unpack(str(folder / f".{name}"), str(target))
                (folder / f".{name}").unlink()
            else:
                (folder / f".{name}").rename(target)
    finally:
        os.close(lock)
    return str(target)


def _fetch(path: str, size: int, into: str) -> None:
    from trainmaster.data.formats.formats import source_of

    make_room(os.path.dirname(into), size)
    if (local := local_path(path)) is not None:
        with writing(into, size):
            shutil.copyfile(local, into)
        return
    source = source_of(path, size)
    with writing(into, size), open(into, "wb", buffering=0) as file:
        for offset in range(0, size, CHUNK):
            write_all(file.fileno(), source.read(offset, CHUNK))


def plain(name: str) -> str:
    """A file's name without an archive's ending."""
    ending = next((ending for ending in sorted(ARCHIVES, key=len, reverse=True) if name.endswith(ending)), "")
    return name.removesuffix(ending) or name


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
