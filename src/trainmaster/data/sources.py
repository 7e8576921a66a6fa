"""What the URL of an input means: the files it names, with their sizes.

A URL names a file, a folder (all files below it), or holds patterns: `*` and `?` within one part of the path, `[..]` a
set of letters, `**` any number of folders. What a pattern matches may be a file or again a folder. A path that exists
as it is written is taken as it is, so a name that holds `[` can be used. Hidden names (`core.input.splits.visible`) are left
out wherever they are met, unless the URL spells them: a name without patterns, or a pattern that begins with the same
`_` or `.`. What is no file at all (a pipe, a socket, a device, a link to nothing) and would be one of the input's is
an error: opening it may wait for ever, and leaving it out would lose data in silence.

Every part of a path is looked at folder by folder, in the same way on every store; local paths are read by scandir.
`stores` tells which library opens what.
"""

from __future__ import annotations

import os
import re
from fnmatch import translate

from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.input.splits import File, Listing, fixed_prefix, has_pattern, visible
from trainmaster.core.spec.job import Input
from trainmaster.data.store.stores import Entry, Store, local_path, store_for
from trainmaster.log.storage import draft_of, storage_failed


def list_input(given: Input | str, key: str = "") -> Listing:
    """The files that an input, or a URL, names, by path. Raises BadInput, naming `key` (inputs.NAME.url), where there
    are none.

    Local files are named by absolute path, others by URL. What is mounted is not looked into.
    """
    if isinstance(given, Input) and given.as_ == "mount":
        return Listing(f"{mountable(given.url, f'inputs.{given.name}.url').rstrip('/')}/", ())
    if isinstance(given, Input):
        return list_input(given.url, f"inputs.{given.name}.url")
    url = given
    place = local_path(url) or url
    try:
        listing = _listed(place)
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


def write_list(listing: Listing, path: str) -> None:
    """The file that a task with an input `as: list` finds: the paths or URLs of its part, one a line."""
    draft = draft_of(path)
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(f"{found.path}\n" for found in listing.files)
    os.replace(draft, path)


def mountable(url: str, key: str = "") -> str:
    """The path that an input is mounted from. Raises BadInput where there is none, or nothing at it."""
    target = local_path(url)
    if target is None or has_pattern(target):
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
    """Put a link to the input itself at `path`, in a directory of the task's own, where programs see and may change the original. Raises
    BadInput where it has no path.
    """
    target = mountable(url, key)
    if os.path.islink(path):
        os.unlink(path)  # that of an attempt before, or one that came with the files
    elif os.path.lexists(path):
        raise BadInput(
            f"{path} exists and is no link to an input",
            place=f"{key}: {url}" if key else url,
            mend="move it away, or give the input another path: local:",
            anchor="input-exists",
        )
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target.rstrip("/") or "/", path)


def _listed(place: str) -> Listing:
    plain = place.rstrip("/")
    parent, _, name = plain.rpartition("/")
    if name and not parent.endswith((":", ":/")):
        store = store_for(parent or "/")
        prefix = f"{parent}/"
        if (found := store.look(name)) is not None:
            return Listing(prefix, (_named(prefix, found),))
        if any(entry.folder and entry.name == name for entry in store.entries("")):
            return _below(store, f"{prefix}{name}/", name)
    if not has_pattern(plain):
        store = store_for(plain or "/")
        return _below(store, f"{plain}/", "")
    prefix = fixed_prefix(plain)
    store = store_for(prefix.rstrip("/") if not prefix.endswith("://") else prefix)
    matching = _matching(store, "", plain[len(prefix) :].split("/"))
    return Listing(prefix, tuple(sorted({_named(prefix, file) for file in matching}, key=lambda file: file.path)))


def _below(store: Store, prefix: str, folder: str) -> Listing:
    files = [File(file.path.removeprefix(f"{folder}/"), file.size, stamp=file.stamp) for file in _walk(store, folder)]
    return Listing(prefix, tuple(sorted((_named(prefix, file) for file in files), key=lambda file: file.path)))


def _named(prefix: str, file: File) -> File:
    return File(prefix + file.path, file.size, stamp=file.stamp)


def _matching(store: Store, folder: str, pattern: list[str]) -> list[File]:
    """The files below `folder` that match the parts of the pattern."""
    part, rest = pattern[0], pattern[1:]
    entries = store.entries(folder)
    found: list[File] = []
    if part == "**":
        found += _matching(store, folder, rest) if rest else _walk(store, folder)
        for entry in entries:
            if rest and entry.folder and visible(entry.name):
                found += _matching(store, _join(folder, entry.name), pattern)
        return found
    for entry in _alike(entries, part):
        at = _join(folder, entry.name)
        if entry.folder:
            found += _matching(store, at, rest) if rest else _walk(store, at)
        elif not rest:
            found.append(_file(store, at, entry))
    return found


def _alike(entries: list[Entry], part: str) -> list[Entry]:
    if not has_pattern(part):
        return [entry for entry in entries if entry.name == part]
    matches = re.compile(translate(part)).match
    return [e for e in entries if matches(e.name) and (visible(e.name) or part[0] == e.name[0])]


def _walk(store: Store, folder: str) -> list[File]:
    found, folders = [], [folder]
    for at in folders:
        for entry in store.entries(at):
            if not visible(entry.name):
                continue
            if entry.folder:
                folders.append(_join(at, entry.name))
            else:
                found.append(_file(store, _join(at, entry.name), entry))
    return found


def _file(store: Store, path: str, entry: Entry) -> File:
    if entry.odd:
        told = f"{store.url}/{path} is {entry.odd}, and no file"
        mend = "remove it, or have the URL name the files alone, as with *.csv"
        raise BadInput(told, place=store.url, mend=mend, anchor="no-input")
    return File(path, entry.size, stamp=entry.stamp)


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
