"""Sets in a directory or at a URL: of each set a file with the buffers, and a manifest that makes it one.

    state-00000007.bin    the buffers
    state-00000007.json   the header (`state_format`) with a CRC-32 of each buffer; written last

A file is written under a name that begins with a dot, made durable, and renamed; so under its own name it is whole and never changes. A
set is one that has both, with the size that the manifest tells. The others were cut short, or are being removed, and are passed over; so
is, when it is read, a set whose bytes are not those that were written. One program at a time stores sets in a place.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib

from ..folders import create_draft
from .memory_slots import read_all
from .state_format import check_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Protocol

    class Place(Protocol):
        """A directory, or what is like one at a URL."""

        def sizes(self) -> dict[str, int]: ...
        def read(self, name: str) -> bytes: ...
        def reading(self, name: str) -> contextlib.AbstractContextManager[Callable[[memoryview, int], int]]: ...
        def write(self, name: str, pieces: Iterable[memoryview]) -> None: ...
        def remove(self, name: str) -> None: ...


PIECE = 8 * 1024 * 1024  # bytes that are read and written at once
_NAME = re.compile(r"(?:\.)?state-([0-9]{8,15})\.(json|bin)(\.part)?")


def place_at(url: str) -> Place:
    """Return the place at a path or URL. Raises ImportError where a URL needs fsspec and the program's Python has none."""
    if "://" not in url:
        return Folder(url)
    if url.startswith("file://"):
        return Folder(url[len("file://") :])
    return Remote(url)


# -- sets --


def numbers(place: Place) -> list[int]:
    """Return the numbers that are in use, rising: of sets, and of what is left of some."""
    matches = (_NAME.fullmatch(name) for name in place.sizes())
    return sorted({int(match[1]) for match in matches if match})


def headers(place: Place, tell: Callable[[str], None] = lambda fault: None) -> Iterator[dict[str, Any]]:
    """Yield the headers of the sets, the newest first. `tell` gets the words for each one that is damaged, and passed over."""
    sizes = place.sizes()
    for number in reversed(numbers(place)):
        name = _name(number)
        if f"{name}.json" not in sizes:
            continue
        try:
            header = json.loads(place.read(f"{name}.json"))
            if header["number"] != number:
                raise ValueError(f"it is that of set {header['number']}")
            if type(header["step"]) is not int or "dict" not in header["tree"]:
                raise ValueError("it has no step, or no state")
            if (size := sizes.get(f"{name}.bin")) != header["size"]:
                raise ValueError(
                    f"{name}.bin {'is missing' if size is None else f'has {size:,} bytes'}, of {header['size']:,}"
                )
            check_version(header)
        except (ValueError, KeyError, TypeError, RecursionError) as error:  # a manifest that was cut short, for one
            tell(f"{name}.json is passed over: {error}")
            continue
        yield header


@contextlib.contextmanager
def reading(place: Place, header: dict[str, Any]) -> Iterator[Callable[[int, memoryview], None]]:
    """Give a function that fills a view with the bytes of a buffer of this set. It raises ValueError where they are not those written."""
    with place.reading(f"{_name(header['number'])}.bin") as read_part:

        def read(index: int, view: memoryview) -> None:
            read_all(read_part, header["buffers"][index][0], view)
            if zlib.crc32(view) != header["checksums"][index]:
                raise ValueError("its bytes are not those that were written")

        yield read


def store(place: Place, header: dict[str, Any], pieces: Callable[[int], Iterable[memoryview]], keep: int) -> None:
    """Store a set, and remove all but the newest `keep`. `pieces(i)` yields the bytes of buffer `i`. Raises OSError."""
    checksums: list[int] = []

    def content() -> Iterator[memoryview]:
        end = 0
        for index, (offset, size) in enumerate(header["buffers"]):
            yield memoryview(bytes(offset - end))
            checksum = 0
            for piece in pieces(index):
                checksum = zlib.crc32(piece, checksum)
                yield piece
            checksums.append(checksum)
            end = offset + size

    name = _name(header["number"])
    place.write(f"{name}.bin", content())
    manifest = json.dumps({**header, "checksums": checksums}).encode()
    place.write(f"{name}.json", [memoryview(manifest)])
    prune(place, keep)


def prune(place: Place, keep: int) -> None:
    """Remove the sets before the newest `keep`, and what is left of sets that were cut short."""
    newest = [header["number"] for _, header in zip(range(max(1, keep)), headers(place), strict=False)]
    names = sorted(place.sizes(), key=lambda name: not name.endswith(".json"))  # the manifest first: that ends the set
    for name in names:
        match = _NAME.fullmatch(name)
        if match and newest and int(match[1]) < newest[0] and int(match[1]) not in newest:
            place.remove(name)


def _name(number: int) -> str:
    return f"state-{number:08}"


# -- places --


class Folder:
    """A directory of this machine."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def sizes(self) -> dict[str, int]:
        try:
            with os.scandir(self.path) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if _NAME.fullmatch(entry.name)}
        except FileNotFoundError:
            return {}

    def read(self, name: str) -> bytes:
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read()

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Callable[[memoryview, int], int]]:
        descriptor = os.open(os.path.join(self.path, name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield lambda view, offset: os.preadv(descriptor, [view], offset)
        finally:
            os.close(descriptor)

    def write(self, name: str, pieces: Iterable[memoryview]) -> None:
        os.makedirs(self.path, exist_ok=True)
        path, draft = os.path.join(self.path, name), os.path.join(self.path, f".{name}.part")
        descriptor = create_draft(draft)
        try:
            for piece in pieces:
                while piece:
                    piece = piece[os.write(descriptor, piece) :]
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # nobody reads it soon
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        finally:
            os.close(descriptor)
        os.rename(draft, path)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))


class Remote:
    """A folder of an fsspec filesystem, from the program's own Python."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self._files, path = url_to_fs(url)
        self._path = path.rstrip("/")

    def sizes(self) -> dict[str, int]:
        try:
            self._files.invalidate_cache()
            entries = self._files.ls(self._path, detail=True)
        except FileNotFoundError:
            return {}
        return {entry["name"].rpartition("/")[2]: int(entry["size"] or 0) for entry in entries}

    def read(self, name: str) -> bytes:
        return bytes(self._files.cat_file(f"{self._path}/{name}"))

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Callable[[memoryview, int], int]]:
        with self._files.open(f"{self._path}/{name}", "rb", block_size=PIECE) as file:

            def read(view: memoryview, offset: int) -> int:
                file.seek(offset)
                piece = file.read(min(len(view), PIECE))
                view[: len(piece)] = piece
                return len(piece)

            yield read

    def write(self, name: str, pieces: Iterable[memoryview]) -> None:
        """Write a file under its own name: an object is there once it is whole, and a manifest that is cut short does not count."""
        self._files.makedirs(self._path, exist_ok=True)
        with self._files.open(f"{self._path}/{name}", "wb", block_size=PIECE) as file:
            for piece in pieces:
                file.write(piece)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(f"{self._path}/{name}")
