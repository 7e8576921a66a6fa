"""A server's part in checkpoints: each server writes its share, and server 0 makes one checkpoint of them."""

from __future__ import annotations

import os

from .checkpoints import manifests, share_name, sound_manifests, version_folder, write_manifest
from .snapshots import Snapshots

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..peers import Host
    from ..shard import Entry, Shard
    from .checkpoints import Plain


class Saving:
    """The checkpoints that are being written. All methods are for the server's own thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._snapshots = Snapshots(host.settings.directory)
        self._shares: dict[
            tuple[int, int], dict[int, Plain]
        ] = {}  # of server 0: by version and sequence, those that are written
        self._unreported: list[Plain] = []  # how shares ended that no whole checkpoint has followed yet
        self.unsaved = -1  # the newest version whose share could not be written

    @property
    def is_under_way(self) -> bool:
        """Tell whether server 0 waits for shares."""
        return bool(self._shares)

    def is_writing(self, version: int) -> bool:
        return any(version == known for known, _ in self._shares)

    def begin(self, shard: Shard) -> int:
        """Begin to write the share as it is now, and return a descriptor that can be read once that is done."""
        if self._host.settings.index == 0:
            self._shares[shard.version, shard.sequence] = {}
        return self._snapshots.begin(shard)

    def take_written(self, descriptor: int) -> str:
        """Take in the end of a share's writing; returns why it failed, "" where it did not."""
        report = {"op": "saved", "index": self._host.settings.index, **self._snapshots.end(descriptor)}
        if "error" in report:
            self.unsaved = report["version"]
        if self._host.settings.index == 0:
            self.take_share(report)
        else:
            self._unreported.append(report)
            self.report([report])
        return f"the checkpoint of version {report['version']} failed: {report['error']}" if "error" in report else ""

    def report(self, reports: Sequence[Plain] | None = None) -> None:
        """Tell server 0 how shares ended. If server 0 came back, report all (None), since it waits for those of its log again."""
        for report in self._unreported if reports is None else reports:
            if self._host.leader is not None:
                self._host.tell(self._host.leader, report)

    def take_share(self, report: Plain) -> None:
        """As server 0 hear of a share, and make a checkpoint whole with the last one."""
        key, settings = (int(report["version"]), int(report["sequence"])), self._host.settings
        if "error" in report:
            self._shares.pop(key, None)
        shares = self._shares.get(key)
        if shares is None:
            return
        shares[int(report["index"])] = report["share"]
        if len(shares) == settings.servers:
            del self._shares[key]
            ordered = [shares[index] for index in range(settings.servers)]
            write_manifest(settings.directory, *key, ordered)
            self._host.add({"complete": key[0], "made_at": key[1], "shares": ordered})

    def complete(self, entry: Entry) -> None:
        """Forget what a whole checkpoint makes needless; write its manifest where server 0 does not share this server's directory."""
        version, settings = entry["complete"], self._host.settings
        self._shares = {key: shares for key, shares in self._shares.items() if key[0] > version}
        self._unreported = [report for report in self._unreported if report["version"] > version]
        if not settings.directory or "shares" not in entry:  # one of an earlier version has none
            return
        share = os.path.join(version_folder(settings.directory, version), share_name(settings.index, settings.servers))
        known = {manifest.version for manifest in sound_manifests(settings.directory, settings.servers)}
        if os.path.exists(share) and version not in known:
            write_manifest(settings.directory, version, entry["made_at"], entry["shares"])

    def complete_again(self, entries: Sequence[Entry]) -> None:
        """Tell that the newest checkpoint is whole, where server 0 was killed between its manifest and that entry."""
        directory = self._host.settings.directory
        for manifest in manifests(directory)[:1] if directory else ():
            if not manifest.fault and not any(entry.get("complete") == manifest.version for entry in entries):
                shares = list(manifest.shares)
                self._host.add({"complete": manifest.version, "made_at": manifest.sequence, "shares": shares})

    def close(self) -> None:
        self._snapshots.close()
