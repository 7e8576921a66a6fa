"""Objects as they change, whatever happens to the server: list them, then watch from that version on.

A watch ends often: the server ends it, restarts, forgets old versions (410), or is away. `follow` goes on from the last version it has
seen, which bookmarks keep young; where that is too old it lists anew and reports the missed changes as if it had watched them: a new
object is added, one that differs is modified, one that vanished is deleted (its metadata alone is known). So a follower never misses an
object's last state, though it may miss states between.

"synced" is reported once the list is through, and again each time the server is back after "away".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import attrs

from trainmaster.kube.client import Client, Object
from trainmaster.kube.errors import ApiError, ConfError, Gone, KubeError
from trainmaster.kube.kinds import Kind

_KINDS = {"ADDED": "added", "MODIFIED": "modified", "DELETED": "deleted"}
_FIRST, _LONGEST = 0.05, 2.0  # s between tries


@attrs.frozen
class Seen:
    """`kind`: "added", "modified", "deleted" (object: the last there was), "synced", "away" (`why`: the server's failure)."""

    kind: str
    object: Object = attrs.field(factory=dict)
    why: str = ""


class _Known:
    """The objects that were reported, by uid: the version of each, and the metadata by which a deletion is reported."""

    def __init__(self) -> None:
        self._rows: dict[str, Object] = {}

    def update(self, obj: Object, gone: bool = False) -> Seen | None:
        about = obj["metadata"]
        if gone:
            self._rows.pop(about["uid"], None)
            return Seen("deleted", obj)
        before = self._rows.get(about["uid"])
        if before is not None and before["resourceVersion"] == about["resourceVersion"]:
            return None
        keep = ("name", "namespace", "uid", "resourceVersion", "labels", "annotations")
        self._rows[about["uid"]] = {name: about[name] for name in keep if name in about}
        return Seen("added" if before is None else "modified", obj)

    def replace(self, objects: list[Object], kind: Kind) -> list[Seen]:
        uids = {obj["metadata"]["uid"] for obj in objects}
        gone = [self._rows.pop(uid) for uid in list(self._rows) if uid not in uids]
        kind_fields: dict[str, Any] = {"apiVersion": kind.api_version, "kind": kind.name}
        deletions = [Seen("deleted", {**kind_fields, "metadata": about}) for about in gone]
        return deletions + [seen for obj in objects if (seen := self.update(obj)) is not None]


async def follow(
    client: Client, kind: Kind, labels: str = "", fields: str = "", namespace: str = ""
) -> AsyncGenerator[Seen, None]:
    """Yield the objects that the selectors fit, and every change, without end. Raises refusals before the first "synced"."""
    known, since, synced, away, pause = _Known(), "", False, False, _FIRST
    while True:
        try:
            if not since:
                objects, since = await client.list(kind, namespace, labels, fields)
                for seen in known.replace(objects, kind):
                    yield seen
                yield Seen("synced")
                synced, away = True, False
            async with aclosing(client.watching(kind, namespace, labels, fields, since)) as events:
                async for event in events:
                    if event is None:
                        if away:
                            yield Seen("synced")
                        away = False
                        continue
                    pause = _FIRST
                    change, obj = event
                    since = obj["metadata"]["resourceVersion"]
                    change_seen = known.update(obj, change == "DELETED") if change in _KINDS else None
                    if change_seen is not None:
                        yield change_seen
        except KubeError as error:
            if not synced and _refused(error):
                raise
            if isinstance(error, Gone) or _too_old(error):
                since = ""
            elif not away:
                away = True
                yield Seen("away", why=_words(error))
            await asyncio.sleep(pause * (0.5 + random.random() / 2))
            pause = min(pause * 2, _LONGEST)
        else:
            await asyncio.sleep(
                _FIRST * random.random()
            )  # a server that ends each watch at once is not asked without pause


def _refused(error: KubeError) -> bool:
    """Tell whether no other try will go better, as far as one can know."""
    return isinstance(error, ConfError) or (isinstance(error, ApiError) and 400 <= error.code < 429)


def _too_old(error: KubeError) -> bool:
    """Tell whether the server does not know our version yet: it was restored from a copy."""
    return isinstance(error, ApiError) and "Too large resource version" in error.message


def _words(error: KubeError) -> str:
    return error.message.splitlines()[0][:300]
