"""Files as ConfigMaps: the names of one file's objects, their annotations, and how their bytes are read.

See `configmaps` for the code that writes them, and for the reasons.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import re
from collections.abc import Mapping

import attrs

from trainmaster.kube.client import Client, Object
from trainmaster.kube.errors import NotFound
from trainmaster.kube.kinds import CONFIGMAPS

CHUNK = 64 * 1024  # bytes in one object; etcd takes 1.5 MiB, but each sync writes the last one whole
MARK = "trainmaster/write"  # the label that all objects of one write share
PRINTED = "logs"  # the folder of the programs' output
_AT_ONCE = 8  # chunks read at once


@attrs.frozen(slots=True)
class Part:
    """One object of a file: its content, and its place in the file.

    `whole`: the object is the head of a whole file, of that many bytes in that many objects; `rest`: it is a further object of such a
    file, by its number; `chunk`: it is an object of a growing file, by its number. `closed`: nothing can be added to it.
    """

    path: str
    data: bytes
    mark: str
    whole: tuple[int, int] | None = None
    rest: int | None = None
    chunk: int | None = None
    closed: bool = False

    def name(self, job: str) -> str:
        head = head_of(job, self.path)
        if self.rest is not None:
            return rest_of(head, self.mark, self.rest)
        return chunk_of(head, self.chunk or 0)

    def object(self, job: str, labels: Mapping[str, str], owners: list[Object]) -> Object:
        """Return the ConfigMap."""
        notes = {"trainmaster/path": self.path, "trainmaster/size": str(len(self.data))}
        if self.whole is not None:
            notes |= {"trainmaster/whole": str(self.whole[0]), "trainmaster/chunks": str(self.whole[1])}
        for name in ("rest", "chunk"):
            if (number := getattr(self, name)) is not None:
                notes[f"trainmaster/{name}"] = str(number)
        if self.closed:
            notes["trainmaster/closed"] = "true"
        top = {"trainmaster/top": plain(self.path.partition("/")[0]), "trainmaster/file": digest(self.path)}
        metadata: Object = {
            "name": self.name(job),
            "labels": {**labels, **top, MARK: self.mark},
            "annotations": notes,
            **({"ownerReferences": owners} if owners else {}),
        }
        payload = {"data": base64.b64encode(self.data).decode()} if self.data else {}
        obj: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": payload}
        return {**obj, "immutable": True} if self.closed or self.rest is not None else obj


@attrs.frozen(slots=True)
class Row:
    """The facts in an object's metadata."""

    name: str
    path: str
    size: int
    whole: int | None
    rest: bool
    chunk: int | None
    closed: bool
    mark: str
    created: str

    @classmethod
    def of(cls, obj: Object) -> Row:
        metadata = obj["metadata"]
        notes, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
        numbers = {
            name: int(notes[f"trainmaster/{name}"]) for name in ("whole", "chunk") if f"trainmaster/{name}" in notes
        }
        return cls(
            metadata["name"], notes.get("trainmaster/path", ""), int(notes.get("trainmaster/size", 0)), numbers.get("whole"),
            "trainmaster/rest" in notes, numbers.get("chunk"), "trainmaster/closed" in notes, labels.get(MARK, ""),
            metadata.get("creationTimestamp") or "",
        )  # fmt: skip

    @property
    def listed(self) -> int:
        """Return the size that a listing counts for this object: the head of a whole file counts for all of it."""
        return self.size if self.whole is None else self.whole

    @property
    def printed(self) -> bool:
        return self.path.startswith(f"{PRINTED}/")


class Swapped(Exception):
    """A file was replaced while it was read."""


async def read(client: Client, head: str, offset: int, size: int) -> bytes | None:
    first, last = offset // CHUNK, (offset + size - 1) // CHUNK
    try:
        head_object = await client.get(CONFIGMAPS, head, metadata=first > 0)
    except NotFound:
        return None
    metadata, row = head_object["metadata"], Row.of(head_object)
    if row.whole is None:
        names = functools.partial(chunk_of, head)
    else:
        names = functools.partial(rest_of, head, row.mark)
        chunks = int(metadata["annotations"]["trainmaster/chunks"])
        last = min(last, chunks - 1)
    pieces = [] if first else [content(head_object)]
    n = max(first, 1)
    while (not pieces or len(pieces[-1]) >= CHUNK) and n <= last:
        stop = min(n + _AT_ONCE, last + 1)
        answers = await asyncio.gather(*(_chunk(client, names(at)) for at in range(n, stop)))
        present = answers[: answers.index(None)] if None in answers else answers
        if row.whole is not None and len(present) < len(answers):
            raise Swapped
        pieces += [data for data in present if data is not None]
        if len(present) < len(answers) or not present:
            break
        n = stop
    data, skip = b"".join(pieces), offset - first * CHUNK
    return data[skip : skip + size]


async def _chunk(client: Client, name: str) -> bytes | None:
    try:
        return content(await client.get(CONFIGMAPS, name))
    except NotFound:
        return None


def parts(data: bytes) -> list[bytes]:
    return [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)] or [b""]


def content(obj: Object) -> bytes:
    return base64.b64decode((obj.get("binaryData") or {}).get("data") or b"")


def chunk_of(head: str, n: int) -> str:
    return f"{head}.{n}" if n else head


def rest_of(head: str, mark: str, n: int) -> str:
    return f"{head}.{mark}.{n}"


def digest(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()[:24]


def label(text: str) -> str:
    """Return a text as a label's value, as all objects of a job have it: unchanged where allowed, else cut, with a hash of the whole."""
    if re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", text):
        return text
    cleaned = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.") or "x"
    return f"{cleaned[:54].rstrip('-_.')}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def plain(text: str) -> str:
    """Return a text as part of an object's name and as a label's value: unchanged where allowed."""
    if re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        return text
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]
    return f"{plain or 'x'}-{digest(text)[:12]}"


def head_of(job: str, path: str) -> str:
    return f"{job}.{digest(path)}"
