"""Files, folders and archives that many tasks use, brought to a machine once: fetched, checked, unpacked, linked into working directories.

    <cache>/<key>/<name>     a file or a folder as it is, or the folder of an unpacked archive

`key` names the content: the digest of a local file's bytes, or URL, size and stamp of a remote one, which changes when that does. A folder
appears by a rename; of two tasks that fetch at once, the second one finds the first one's. The sizes of all its files are noted
then. A copy that has others later was damaged, by a disk or a program, and is brought again.

`brought:PATH` names a file that an engine has brought to the container already, unpacked where it is an archive.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from trainmaster.core.errors import BadInput
from trainmaster.core.input.splits import Listing
from trainmaster.data.archives import unpack
from trainmaster.data.sources import list_input
from trainmaster.data.store.stores import local_path
from trainmaster.data.store.transfer import CHUNK, make_room, safe_path, writing
from trainmaster.data.store.trees import remove
from trainmaster.log.documents import files as documents
from trainmaster.log.storage import Damaged, write_all

BROUGHT = "brought:"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
_SIZES = "sizes.json"

log = logging.getLogger(__name__)


def provide(sources: Iterable[str], cache: str, folder: str, key: str) -> list[str]:
    """Link each source `URL#NAME` to `folder`/NAME and return the names. Blocks. Without #NAME the name is the URL's last part, less an
    archive's ending.

    `key`: of the job file, for messages. Raises BadInput or StorageFailed.
    """
    names = []
    for source in sources:
        url, _, name = source.partition("#")
        place = _cached_path(url, cache, f"{key}: {source}")
        name = name or plain(os.path.basename(url.rstrip("/")))
        target = safe_path(folder, name, f"{key}: {source}")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        draft = f"{target}.{secrets.token_hex(4)}"
        if os.path.exists(target) and not os.path.islink(target):
            raise BadInput(
                f"{name} is in the working directory already",
                place=f"{key}: {source}",
                mend="give it another #NAME",
                anchor="equal-names",
            )
        os.symlink(place, draft)
        os.replace(draft, target)
        names.append(name)
    return names


def _cached_path(url: str, cache: str, where: str) -> str:
    """Return the path in the cache of the file, folder or archive at `url`, fetched where it is not there yet."""
    if url.startswith(BROUGHT):
        return os.path.realpath(url.removeprefix(BROUGHT))
    listing = list_input(url, where.partition(":")[0])
    files, place = listing.files, (local_path(url) or url).rstrip("/")
    if listing.prefix == f"{place}/":
        return _cached_folder(listing, cache, os.path.basename(place))
    if len(files) != 1:
        raise BadInput(f"{url} names {len(files)} files, and one is wanted", place=where, anchor="no-file")
    file = files[0]
    path = local_path(file.path)
    content = _digest(path) if path is not None else f"{file.path}\0{file.size}\0{file.stamp}"
    name = os.path.basename(file.path)

    def bring(target: Path) -> None:
        draft = target.with_name(f".{name}")
        _fetch(file.path, file.size, str(draft))
        if name.endswith(ARCHIVES):
            unpack(str(draft), str(target))
            draft.unlink()
        else:
            draft.rename(target)
        if target.is_file():
            target.chmod(0o755)  # as YARN has it: stores keep no modes, and it may be a program

    return str(_brought(cache, content, plain(name) if name.endswith(ARCHIVES) else name, bring))


def _cached_folder(listing: Listing, cache: str, name: str) -> str:
    """Return the path in the cache of a folder."""
    from trainmaster.data.staging import download

    rows = [f"{file.path}\0{file.size}\0{file.stamp}" for file in listing.files]

    def bring(target: Path) -> None:
        download(listing, str(target))
        if local_path(listing.prefix) is None:  # as above
            for path in target.rglob("*"):
                if path.is_file():
                    path.chmod(0o755)

    return str(_brought(cache, "\n".join(rows), name, bring))


def _brought(cache: str, content: str, name: str, bring: Callable[[Path], None]) -> Path:
    """Return the path of this content in the cache, brought where it is not there whole."""
    with _locked(cache, content) as folder:
        target, note = folder / name, folder / f".{name}.{_SIZES}"
        if not _is_whole(target, note):
            fresh, aside = folder / f".{name}.fresh", folder / f".{name}.damaged"
            remove(str(fresh))
            bring(fresh)
            if os.path.lexists(target):  # programs that run may use it until then
                log.warning("%s was not sure to be whole, and is replaced", target)
                remove(str(aside))
                target.rename(aside)
            fresh.rename(target)
            documents.write(note, _sizes(target))
            remove(str(aside))
    return target


def _is_whole(target: Path, note: Path) -> bool:
    """Tell whether the files that were brought have their sizes. There may be more, like bytecode."""
    try:
        return documents.read(note).items() <= _sizes(target).items()
    except (FileNotFoundError, Damaged):
        return False


def _sizes(target: Path) -> dict[str, int]:
    """Return the sizes of a file, or of all files in a folder, by their paths in it. Raises FileNotFoundError."""
    if not target.is_dir():
        return {"": target.stat().st_size}
    sizes = {}
    for folder, _, names in os.walk(target):
        for name in names:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            if stat.S_ISREG(status.st_mode):
                sizes[os.path.relpath(path, target)] = status.st_size
    return sizes


@contextlib.contextmanager
def _locked(cache: str, content: str) -> Iterator[Path]:
    """Hold the folder of the cache for this content."""
    folder = Path(cache, hashlib.sha256(content.encode()).hexdigest())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.utime(folder)  # its last use, for `tm prune`
        yield folder
    finally:
        os.close(lock)


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
    """Return a file's name without an archive's ending."""
    ending = next((ending for ending in sorted(ARCHIVES, key=len, reverse=True) if name.endswith(ending)), "")
    return name.removesuffix(ending) or name


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
