"""The checkpoints of a former job's parameter servers, as a submitter sees them: on this machine, or at a URL.

Only the newest checkpoint of such a place is brought to a cluster, without logs and older ones: `PLACE/**/version-V/*`. A file of it that
is missing or cut short is reported before a job starts. Damage is looked for here if the files are on this machine, else by the servers.
"""

from __future__ import annotations

import json
import os
import re

from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.input.splits import Listing
from trainmaster.runtime.patterns import is_pattern

_MANIFEST = re.compile(r"(?:.*/)?version-([0-9]{1,15})/manifest-of-([0-9]{1,9})\.json")


def newest(place: str, origin: str, is_mounted: bool) -> str:
    """Return what of a place servers begin from: a pattern for the newest checkpoint's files, or the place itself where only they can look;
    "" where the place has no checkpoint of servers. Raises BadInput where the newest one is not whole.

    `origin` names the place's flag. `is_mounted`: programs see `file://PATH` by a mount, which may be of another directory than PATH here.
    """
    from trainmaster.data.sources import is_folder
    from trainmaster.data.store.stores import local_path

    path = local_path(place)
    version = _version_at(place, origin) if path is None else _version_here(path, origin)
    if version is None and path is not None and place.startswith("file://"):
        return place if is_mounted or not os.path.exists(path) else ""
    if version is None:
        return ""
    return place if version < 0 or is_pattern(place, is_folder) else f"{place.rstrip('/')}/**/version-{version}/*"


def _version_here(path: str, origin: str) -> int | None:
    """Return the newest version in a directory; None: there is none, -1: it cannot be read without NumPy, and the servers look."""
    from trainmaster.ps.storage.former import Unusable, is_former, newest_former

    if not is_former(path):
        return None
    try:
        return newest_former(path).version
    except Unusable as error:
        raise BadInput(error.message, place=origin, mend=error.mend, anchor="no-file") from error
    except ImportError:
        return -1


def _version_at(url: str, origin: str) -> int | None:
    """Return the newest version at a URL; None: there is none, or the storage does not answer (submitting says why)."""
    from trainmaster.data.sources import list_input
    from trainmaster.data.store.stores import store_for

    try:
        listing = list_input(url)
        sizes = {listing.relative(file): file.size for file in listing.files}
        names = {name: int(match[1]) for name in sizes if (match := _MANIFEST.fullmatch(name))}
        if not names:
            return None
        version, store = max(names.values()), store_for(listing.prefix.rstrip("/"))
        manifests = [name for name, number in names.items() if number == version]
        contents = {name: store.get(name) or b"" for name in manifests}
    except TrainmasterError:
        return None
    faults = [_fault(name, contents[name], sizes) for name in manifests]
    if all(faults):
        mend = f"bring the file back, or remove {_url(listing, manifests[0])} to begin from the checkpoint before"
        raise BadInput(f"{url}: {faults[0]}", place=origin, mend=mend, anchor="no-file")
    return version


def _fault(name: str, content: bytes, sizes: dict[str, int]) -> str:
    """Return what is wrong with the files of a checkpoint, by the manifest of that name; "": all are there."""
    folder = os.path.basename(os.path.dirname(name))
    try:
        shares = [{"bytes": int(share["bytes"])} for share in json.loads(content)["shares"]]
    except (ValueError, KeyError, TypeError):
        shares = []
    for index, share in enumerate(shares):
        ending = f"{folder}/variables-{index}-of-{len(shares)}.ckpt"
        present = [size for path, size in sizes.items() if f"/{path}".endswith(f"/{ending}")]
        if not present:
            return f"the share of server {index} is missing: there is no {ending} beside or near {name}"
        if share["bytes"] not in present:
            return f"{ending} has {present[0]:,} bytes, and had {share['bytes']:,}: it was cut short"
    return "" if shares else f"{name} is not a manifest"


def _url(listing: Listing, name: str) -> str:
    return f"{listing.prefix}{name}"
