"""List the files that the URL of an input names, with their sizes.

A URL names a file, a folder (all files below it), or holds patterns: `*` and `?` within one part of the path, `[..]` a
set of letters, `**` any number of folders. A pattern may match a file or again a folder. A place that exists as it is written is
used as it is, so the names of a file and of the folders above it may hold `[` (`runtime.patterns`). Hidden names
(`core.input.splits.visible`) are left out wherever they are met, unless the URL spells them: a name without patterns, or a
pattern that begins with the same `_` or `.`. A match that is not a file (a pipe, a socket, a device, a link to nothing)
is an error: opening it may wait for ever, and leaving it out would lose data in silence.

Every part of a path is looked at folder by folder, in the same way on every store; local paths are read by scandir.
`stores` tells which library opens what.
"""

from __future__ import annotations

import os
import re
from fnmatch import translate

from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.input.splits import File, Listing, joined, visible
from trainmaster.core.spec.job import COUNTED_LATER, Input
from trainmaster.data.store.stores import Entry, Store, local_path, store_for
from trainmaster.log.storage import draft_of, storage_failed
from trainmaster.runtime.patterns import fixed_prefix, has_pattern, is_pattern
from trainmaster.runtime.reading import counted


def list_input(source: Input | str, key: str = "") -> Listing:
    """Return the files that an input, or a URL, names, by path. Raises BadInput, naming `key` (inputs.NAME.url), where there is no file.

    Local files are named by absolute path, others by URL. An input that is mounted is not looked into. One that is followed may have no
    files yet.
    """
    if isinstance(source, Input) and source.as_ == "follow":
        return Listing(source.location, ())
    if isinstance(source, Input) and source.as_ == "mount":
        return Listing(f"{mountable(source.location, f'inputs.{source.name}.url').rstrip('/')}/", ())
    if isinstance(source, Input) and source.location.startswith("records:"):
        count = _count(source)
        return Listing("records://", (File(source.location, count),) if count else ())
    if isinstance(source, Input):
        listings = [list_input(url, f"inputs.{source.name}.url") for url in source.urls]
        listing = listings[0] if len(listings) == 1 else joined(listings)
        if source.as_ == "list":
            _require_one_line_each(listing, f"inputs.{source.name}.as: list")
        return listing
    url = source
    place = local_path(url) or url
    try:
        listing = _list_place(place)
    except TrainmasterError as error:
        error.place = f"{key}: {url}" if key else error.place
        raise
    except Exception as error:  # whatever a storage's library raises
        failure = storage_failed("list the input", place, error)
        failure.place = f"{key}: {url}" if key else url
        raise failure from error
    if not listing.files:
        raise BadInput(
            f"{url} matches no file",
            place=f"{key}: {url}" if key else url,
            mend="check the path; names that begin with . or _ are left out",
            anchor="no-input",
        )
    return listing


def _require_one_line_each(listing: Listing, place: str) -> None:
    """Raise BadInput for a name that holds a line end: a program would read it as two names of a list."""
    if broken := next((file.path for file in listing.files if "\n" in file.path), ""):
        raise BadInput(
            f"the name {broken!r} holds a line end, and a list has one name per line",
            place=place, mend="rename that file, or use as: download, stream or shards", anchor="line-end",
        )  # fmt: skip


def _count(source: Input) -> int:
    """Return the number of records of an input that has no files; 0: the program counts them. Raises BadInput."""
    place, mend = f"inputs.{source.name}.url: {source.url}", "write records://COUNT/SIZE, as in records://60000/512"
    try:
        count, _, epochs = (0, 0, 0) if source.location == COUNTED_LATER else counted(source.location)
        if epochs:
            raise ValueError(f"{source.url} has epochs, and they are the key epochs of the input")
    except ValueError as error:
        raise BadInput(str(error), place=place, mend=mend, anchor="wrong-value") from error
    if source.shard_records:
        place = f"inputs.{source.name}.shard_records: {source.shard_records}"
        raise BadInput("the URL says how many records a shard has", place=place, mend=mend, anchor="wrong-value")
    if source.as_ != "shards":
        message = f"records that only the program can read are as: shards, not {source.as_}"
        raise BadInput(
            message, place=f"inputs.{source.name}.as: {source.as_}", mend="set as: shards", anchor="wrong-value"
        )
    return count


def write_list(listing: Listing, path: str) -> None:
    """Write the file that a task with an input `as: list` reads: the paths or URLs of its part, one per line."""
    draft = draft_of(path)
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as out:
        out.writelines(f"{file.path}\n" for file in listing.files)
    os.replace(draft, path)


def mountable(url: str, key: str = "") -> str:
    """Return the path that an input is mounted from. Raises BadInput where the URL is not a path, or nothing is there."""
    target = local_path(url)
    if target is None or (not os.path.exists(target) and is_pattern(target)):
        raise BadInput(
            f"{url} cannot be mounted: that takes one path of the machine",
            place=f"{key}: {url}" if key else url,
            mend="use as: download, list or stream",
            anchor="no-mount",
        )
    if not os.path.exists(target):
        raise BadInput(f"{url} does not exist", place=f"{key}: {url}" if key else url, anchor="no-input")
    return target


def mount(url: str, path: str, key: str = "") -> None:
    """Put a link to the input itself at `path`, in the task's own directory, where programs see and may change the original. Raises
    BadInput where the input has no path.
    """
    target = mountable(url, key)
    if os.path.islink(path):
        os.unlink(path)  # that of an attempt before, or one that came with the files
    elif os.path.lexists(path):
        raise BadInput(
            f"{path} exists and is not a link to an input",
            place=f"{key}: {url}" if key else url,
            mend="move it away, or give the input another path: local:",
            anchor="input-exists",
        )
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target.rstrip("/") or "/", path)


def _list_place(place: str) -> Listing:
    plain = place.rstrip("/")
    parent, _, name = plain.rpartition("/")
    if name and not parent.endswith((":", ":/")):
        store = store_for(parent or "/")
        prefix = f"{parent}/"
        if (file := store.look(name)) is not None:
            return Listing(prefix, (_with_prefix(prefix, file),))
        if is_folder(plain):
            return _below(store, f"{prefix}{name}/", name)
    if not has_pattern(plain):
        store = store_for(plain or "/")
        return _below(store, f"{plain}/", "")
    prefix = fixed_prefix(plain, is_folder)
    store = store_for(prefix.rstrip("/") if not prefix.endswith("://") else prefix)
    matching = _matching_files(store, "", plain[len(prefix) :].split("/"))
    return Listing(prefix, tuple(sorted({_with_prefix(prefix, file) for file in matching}, key=lambda file: file.path)))


def is_folder(place: str) -> bool:
    """Tell whether a path or URL is the name of a folder."""
    parent, _, name = place.rpartition("/")
    return any(entry.folder and entry.name == name for entry in store_for(parent or "/").entries(""))


def _below(store: Store, prefix: str, folder: str) -> Listing:
    files = [File(file.path.removeprefix(f"{folder}/"), file.size, stamp=file.stamp) for file in _walk(store, folder)]
    return Listing(prefix, tuple(sorted((_with_prefix(prefix, file) for file in files), key=lambda file: file.path)))


def _with_prefix(prefix: str, file: File) -> File:
    return File(prefix + file.path, file.size, stamp=file.stamp)


def _matching_files(store: Store, folder: str, pattern: list[str]) -> list[File]:
    """Return the files below `folder` that match the parts of the pattern."""
    part, rest = pattern[0], pattern[1:]
    entries = store.entries(folder)
    files: list[File] = []
    if part == "**":
        files += _matching_files(store, folder, rest) if rest else _walk(store, folder)
        for entry in entries:
            if rest and entry.folder and visible(entry.name):
                files += _matching_files(store, _join(folder, entry.name), pattern)
        return files
    for entry in _matching_entries(entries, part):
        path = _join(folder, entry.name)
        if entry.folder:
            files += _matching_files(store, path, rest) if rest else _walk(store, path)
        elif not rest:
            files.append(_file(store, path, entry))
    return files


def _matching_entries(entries: list[Entry], part: str) -> list[Entry]:
    if not has_pattern(part):
        return [entry for entry in entries if entry.name == part]
    matches = re.compile(translate(part)).match
    return [e for e in entries if matches(e.name) and (visible(e.name) or part[0] == e.name[0])]


def _walk(store: Store, folder: str) -> list[File]:
    files, folders = [], [folder]
    for path in folders:
        for entry in store.entries(path):
            if not visible(entry.name):
                continue
            if entry.folder:
                folders.append(_join(path, entry.name))
            else:
                files.append(_file(store, _join(path, entry.name), entry))
    return files


def _file(store: Store, path: str, entry: Entry) -> File:
    if entry.odd:
        problem = f"{store.url}/{path} is {entry.odd}, and no file"
        mend = "remove it, or have the URL name the files alone, as with *.csv"
        raise BadInput(problem, place=store.url, mend=mend, anchor="no-input")
    return File(path, entry.size, stamp=entry.stamp)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
