"""The files of a job's directory that its tasks get: by default all of them, except those that tasks get another way or never want.

Left out are the places of the job's inputs and outputs, of its checkpoint and of its storage, what git ignores (`data.archives`), caches,
and our own state: a job that is submitted from above it must not ship the logs of all jobs before it. Naming a place in `files` ships it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainmaster.client.jobs.places import state_dir
from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import Job
from trainmaster.core.spec.quantities import format_bytes, format_count
from trainmaster.runtime.patterns import has_pattern, matching

if TYPE_CHECKING:
    from trainmaster.data.archives import Member

LARGEST = 2 * 2**30  # bytes that are shipped without a question: more is data, not program
MUCH = 100 * 2**20  # bytes from which on the submitter sees the largest ones
_SHOWN = 5
_MOST_OF_IT = 0.9  # of a folder's bytes: the one entry that has them is shown in the place of the folder

Sizes = Sequence[tuple[str, int]]  # (name, bytes)


def pack_files(job: Job, base: Path) -> str:
    """Return the archive of the job's files, named by its content. Say on stderr what is not shipped, and what is large."""
    import sys

    from trainmaster.data.archives import pack_members
    from trainmaster.words.text import not_shipped

    members, left_out = _listed(job, base)
    path = pack_members(members, str(state_dir() / "files"))
    words = [not_shipped(left_out)] if left_out else []
    for line in [*words, *much_shipped(_sizes(members))]:
        print(line, file=sys.stderr, flush=True)
    return path


def shipped_files(job: Job, base: Path) -> tuple[list[tuple[str, int]], list[str]]:
    """Return (name, bytes) of what is shipped, an empty folder as `name/`, and the names of what cannot be. Raises BadInput where it is
    more than anybody ships on purpose.
    """
    members, left_out = _listed(job, base)
    return _sizes(members), left_out


def _listed(job: Job, base: Path) -> tuple[list[Member], list[str]]:
    from trainmaster.data.archives import listed

    members, left_out = listed(job.files, str(base), _excluded_places(job, base), _ours())
    shipped = _sizes(members)
    total = sum(size for _, size in shipped)
    if total > LARGEST:
        raise BadInput(
            f"the files to ship are {format_bytes(total)}, more than {format_bytes(LARGEST)}: {_described(largest(shipped))}",
            place=f"files: {list(job.files)}",
            mend="name less in files, put data under inputs, or list it in .gitignore",
            anchor="files-too-large",
        )
    return members, sorted(left_out)


def _sizes(members: Sequence[Member]) -> list[tuple[str, int]]:
    return [(f"{member.name}/" if member.is_folder else member.name, member.size) for member in members]


def much_shipped(shipped: Sizes) -> list[str]:
    """Return a line for the submitter, where so much is shipped that it may not be meant."""
    total = sum(size for _, size in shipped)
    if total < MUCH:
        return []
    much = f"shipping {format_count(len(shipped), 'file')}, {format_bytes(total)}, with the job: {_described(largest(shipped))}"
    return [f"{much}; what the programs do not need belongs in .gitignore, and data under inputs"]


def largest(shipped: Sizes, count: int = _SHOWN) -> list[tuple[str, int]]:
    """Return (path, bytes) of the largest entries of the job's directory. One with nearly all bytes of its folder stands for that."""
    sizes: Counter[str] = Counter()
    for name, size in shipped:
        parts = name.split("/")
        for end in range(1, len(parts) + 1):
            sizes["/".join(parts[:end])] += size
    below: dict[str, list[str]] = {}
    for path in sizes:
        below.setdefault(path.rpartition("/")[0], []).append(path)
    top = sorted(below.get("", ()), key=lambda path: -sizes[path])[:count]
    return [(path, sizes[path]) for path in (_deepest(path, below, sizes) for path in top)]


def _deepest(path: str, below: dict[str, list[str]], sizes: Counter[str]) -> str:
    while entries := below.get(path):
        entry = max(entries, key=lambda entry: sizes[entry])
        if sizes[entry] < _MOST_OF_IT * sizes[path]:
            break
        path = entry
    return path


def _described(entries: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{path} {format_bytes(size)}" for path, size in entries)


def _excluded_places(job: Job, base: Path) -> list[str]:
    """Return the places below `base` that programs get, or write, another way. Files there by now, of a run by hand, are not theirs."""
    places = [output.local or name for name, output in job.outputs.items() if output.as_ != "stream"]
    places += [path for name, source in job.inputs.items() if _is_empty(base / (path := source.local or name))]
    if job.checkpoint is not None:
        places.append(job.checkpoint.path)
    return [*places, *_local_places(job, base)]


def _is_empty(folder: Path) -> bool:
    """Tell whether a folder is there with nothing in it. One at an input's place would be in the way of an input that is mounted."""
    return folder.is_dir() and not any(folder.iterdir())


def _local_places(job: Job, base: Path) -> Iterator[str]:
    from trainmaster.data.store.stores import local_path

    urls = [url for source in job.inputs.values() for url in source.urls] + [
        output.url for output in job.outputs.values()
    ]
    urls += [job.checkpoint.url if job.checkpoint is not None else "", job.storage]
    for url in filter(None, urls):
        if (path := local_path(url)) is not None:
            absolute = os.path.join(base, os.path.expanduser(url)) if "://" not in url else path
            yield from matching(absolute) if has_pattern(absolute) else [absolute]


def _ours() -> list[str]:
    """Return the folders of our state, and of the user's caches."""
    from trainmaster.host.places import runtime_root

    return [str(state_dir()), str(runtime_root()), os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")]
