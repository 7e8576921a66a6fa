"""The checkpoints of a former job, wherever their files are below a directory.

    DIRECTORY/version-V/...                  servers that shared a directory
    DIRECTORY/ANY/version-V/...              servers each of which kept a directory of its own

A manifest names the shares by size and digest, so each is known in any folder. Only server 0 writes the manifest. A checkpoint without a
manifest was never whole, and is passed over. The newest checkpoint that has a manifest is the one to begin from. If that manifest or a
share is damaged, or a share is missing, that is an error: an older checkpoint would silently lose what was learned since.

A submitter looks too, and may have no NumPy: nothing that needs NumPy is imported before a share is to be read.
"""

from __future__ import annotations

import dataclasses
import glob
import os
from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..shard import Shard
    from .checkpoints import Manifest

_DEPTH = 3  # folders between a directory that is named and `version-V`, at most


class Unusable(ValueError):
    """A former job's checkpoint cannot be begun from: the `message` names the file, the `mend` says what to do."""

    def __init__(self, message: str, mend: str = "") -> None:
        super().__init__(f"{message}: {mend}" if mend else message)
        self.message, self.mend = message, mend


@dataclass(frozen=True)
class Former:
    """A checkpoint of a former job. `paths`: of each server's share."""

    version: int
    manifest: str
    paths: tuple[str, ...]

    @property
    def servers(self) -> int:
        return len(self.paths)

    def load(self, index: int, servers: int) -> Shard:
        """Return what server `index` of `servers` has of it, for a new training without the former workers. Raises Unusable, NoRoom."""
        from ..shard import Shard
        from ..tables.memory import check_room
        from .checkpoints import load_share
        from .journal import Damaged

        shard = Shard(index, servers)
        is_alike = servers == self.servers
        try:
            check_room(index, servers, self.version, [os.path.getsize(path) for path in self.paths])
            for path in [self.paths[index]] if is_alike else self.paths:
                load_share(path, shard, is_own=is_alike)
        except (Damaged, OSError) as error:
            raise _unusable(str(error), self.manifest) from None
        shard.inherit()
        return shard


def is_former(directory: str) -> bool:
    """Tell whether a directory has checkpoints of parameter servers, in it or below."""
    return any(_is_manifest_in(folder) for folder in _folders(directory))


def newest_version(directory: str) -> int:
    """Return the version of the newest checkpoint in a directory or below, whether or not its shares are there; -1: there is none."""
    from .checkpoints import manifests

    return max((known.version for folder in _folders(directory) for known in manifests(folder)), default=-1)


def newest_former(directory: str, index: int = 0, servers: int = 0) -> Former:
    """Return the newest checkpoint in a directory or below, each share of which is as it was written. Raises Unusable.

    With `servers`, only the shares that server `index` of them loads are digested; of the other shares only the sizes are looked at.
    """
    from .checkpoints import manifests

    folders = list(_folders(directory))
    known = [manifest for folder in folders for manifest in manifests(folder)]
    if not known:
        mend = "name the --checkpoint_dir of a job, or a directory with version-N/manifest-of-N.json in it"
        raise Unusable(f"{directory} has no whole checkpoint of parameter servers", mend)
    newest = max(known, key=lambda manifest: (manifest.version, manifest.sequence))
    # Several jobs may have kept the same version: any of them whose shares are all there will do.
    alike = [manifest for manifest in known if manifest.version == newest.version]
    faults = []
    for manifest in alike:
        is_own_alone = len(alike) == 1 and servers == manifest.servers  # else all servers must choose the same one
        try:
            return _located(manifest, folders, (index,) if is_own_alone else range(manifest.servers))
        except Unusable as error:
            faults.append(error)
    raise faults[0]


# -- below --


def _located(manifest: Manifest, folders: list[str], digested: Collection[int]) -> Former:
    from .checkpoints import share_name
    from .journal import Damaged

    path_of_manifest = os.path.join(manifest.folder, f"manifest-of-{manifest.servers}.json")
    if manifest.fault:
        raise _unusable(manifest.fault, path_of_manifest)
    paths = []
    for index in range(manifest.servers):
        faults = []
        name = os.path.join(f"version-{manifest.version}", share_name(index, manifest.servers))
        for folder in dict.fromkeys([os.path.dirname(manifest.folder), *folders]):
            path = os.path.join(folder, name)
            if not os.path.exists(path):
                continue
            try:
                dataclasses.replace(manifest, folder=os.path.dirname(path)).check(index, index in digested)
            except Damaged as error:
                faults.append(str(error))
                continue
            paths.append(path)
            break
        else:
            missing = f"the share of server {index} is missing: no {name} is beside or near {path_of_manifest}"
            raise _unusable(faults[0] if faults else missing, path_of_manifest)
    return Former(manifest.version, path_of_manifest, tuple(paths))


def _unusable(message: str, manifest: str) -> Unusable:
    return Unusable(message, f"bring the file back, or remove {manifest} to begin from the checkpoint before")


def _is_manifest_in(folder: str) -> bool:
    return bool(glob.glob(os.path.join(glob.escape(folder), "version-*", "manifest-of-*.json")))


def _folders(directory: str, depth: int = _DEPTH) -> Iterator[str]:
    """Yield the directories in which `version-V` lies: the one named, and those below it."""
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
    except OSError:
        return
    if any(name.startswith("version-") for name in names):
        yield directory
    for name in names:
        if depth > 1 and not name.startswith("version-") and name != "journal":
            yield from _folders(os.path.join(directory, name), depth - 1)
