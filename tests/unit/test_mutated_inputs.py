"""What others write is bounded where it is read: each reader takes what it knows, or says in its own error that it does not.

For each reader a sound input is changed in many ways: values of JSON become others, bytes flip, parts are cut, repeated and moved.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import shutil
import socket
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import pytest
from conftest import Seeds

from trainmaster.client.jobs import handles
from trainmaster.client.spec import jobfile
from trainmaster.core import foreign
from trainmaster.core.errors import TrainmasterError
from trainmaster.core.machine import events
from trainmaster.core.spec.reading import job_from
from trainmaster.data import archives, checkpoints
from trainmaster.hadoop import sitefile, wire
from trainmaster.hadoop.errors import AuthenticationFailed, ConfError, Garbled
from trainmaster.hadoop.security import acls, credentials, sasl
from trainmaster.log import epochs
from trainmaster.log.documents import files as documents
from trainmaster.log.metrics import files as metrics
from trainmaster.log.storage import LocalStorage
from trainmaster.ps.storage import checkpoints as ps_checkpoints
from trainmaster.ps.storage import journal
from trainmaster.ps.wire import messages
from trainmaster.runtime.feed import results
from trainmaster.runtime.formats import DamagedFile, recordio
from trainmaster.runtime.states import saver, state_format, stored_states
from trainmaster.spark import reservation, tfrecords

MOST = 500
SOAK = 10_000
NAMES = (
    "event", "document", "job.json", "job file", "job file of JSON", "foreign JSON", "handle", "Hadoop's site file", "Hadoop's reply",
    "Hadoop's tokens", "SASL", "access list", "archive zip", "archive gz", "archive xz", "archive ", "RecordIO", "Example",
    "results of a feed", "message of a parameter server", "log of a parameter server", "manifest of a parameter server", "checkpoint set",
    "state of checkpoint.save", "reservation", "metrics", "record of the master",
)  # fmt: skip
NASTY = (
    None, True, -1, 0, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "\0", "\ud800", "x" * 70_000, "../../etc/passwd",
    "../neighbour", "files/../../neighbour", "/",
    "9" * 5000, [], {}, [[]], [None], {"": None}, {"v": {}}, json.loads("[" * 500 + "]" * 500),
)  # fmt: skip


def mutated(sound: bytes, draw: random.Random) -> bytes:
    """Return the input with one to three changes."""
    content = sound
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        content = draw.choice((_flipped, _cut, _repeated, _replaced, _json, _json, _numbers))(content, draw)
    return content


def _flipped(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content or b"\0")
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(content: bytes, draw: random.Random) -> bytes:
    begin, end = sorted(draw.randint(0, len(content)) for _ in range(2))
    return draw.choice((content[:begin], content[end:], content[:begin] + content[end:]))


def _repeated(content: bytes, draw: random.Random) -> bytes:
    begin, end = sorted(draw.randint(0, len(content)) for _ in range(2))
    return content[:end] + content[begin:end] * draw.choice((1, 2, 50)) + content[end:]


def _replaced(content: bytes, draw: random.Random) -> bytes:
    at = draw.randint(0, len(content))
    part = draw.choice(
        (b"\0" * 8, b"\xff" * 8, b"[" * 3000, b"{" * 3000, b'"', b"\n", b"<a>" * 500, b"&x;", b"%s%n", b"\x1b]52;")
    )
    return content[:at] + part + content[at + draw.choice((0, len(part))) :]


def _numbers(content: bytes, draw: random.Random) -> bytes:
    """Make one run of digits, or four bytes, a large number."""
    places = [at for at in range(len(content)) if content[at : at + 1].isdigit()]
    if places and draw.random() < 0.7:
        at = draw.choice(places)
        return content[:at] + draw.choice((b"9" * 30, b"9" * 5000, b"-1", b"1e999", b"0")) + content[at + 1 :]
    at = draw.randint(0, max(0, len(content) - 4))
    return (
        content[:at]
        + draw.choice((b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\x7f\xff\xff\xff"))
        + content[at + 4 :]
    )


def _json(content: bytes, draw: random.Random) -> bytes:
    """Change one value of a JSON text; of one with lines, in one of them."""
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    number = draw.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except (ValueError, RecursionError):
        return _flipped(content, draw)
    lines[number] = json.dumps(_changed(value, draw)).encode() + (b"\n" if len(lines) > 1 else b"")
    return b"".join(lines)


def _changed(value: Any, draw: random.Random) -> Any:
    if not isinstance(value, dict | list) or not value or draw.random() < 0.2:
        return draw.choice(NASTY)
    if isinstance(value, dict):
        key = draw.choice(list(value))
        rest = {name: item for name, item in value.items() if name != key}
        return draw.choice(
            (rest, {**value, key: _changed(value[key], draw)}, {**value, key: _changed(value[key], draw)})
        )
    at = draw.randrange(len(value))
    return [*value[:at], _changed(value[at], draw), *value[at + 1 :]]


# -- the readers --


@attrs.frozen
class Reader:
    """`read(content, folder)` gets what was changed. `refuses`: its own errors."""

    sound: bytes
    read: Callable[[bytes, Path], Any]
    refuses: tuple[type[Exception], ...] = (TrainmasterError,)


def at_file(read: Callable[[Path], Any], name: str) -> Callable[[bytes, Path], Any]:
    """Return a reader of bytes, of one of a file."""

    def from_bytes(content: bytes, folder: Path) -> Any:
        path = folder / name
        path.write_bytes(content)
        return read(path)

    return from_bytes


def whole(values: Iterator[Any]) -> list[Any]:
    return list(values)


JOB = {
    "name": "digits", "framework": "pytorch", "annotations": {"a": "b"},
    "roles": {"worker": {"command": "python train.py", "replicas": {"min": 1, "max": 4}, "env": {"A": "1"}, "ports": {"http": 0},
                         "restart": {"scope": "task", "limit": 3}, "resources": {"memory": "1GiB", "cores": 2}}},
    "inputs": {"train": {"url": "data/*.csv", "as": "shards", "epochs": 2}}, "outputs": {"model": {"url": "out", "from": "worker:0"}},
    "checkpoint": {"path": "ckpt", "every": "5m"}, "timeouts": {"start": "5m"},
}  # fmt: skip
YAML = b"""
name: digits
roles: &roles
  worker: {command: [python, train.py], replicas: 2, resources: {memory: 1GiB}}
inputs:
  train: {url: "data/*.csv", as: shards}
<<: {framework: pytorch}
"""
SITE = b"""<?xml version="1.0"?><!DOCTYPE configuration [<!ENTITY x "y">]>
<configuration xmlns:xi="http://www.w3.org/2001/XInclude"><property><name>a</name><value>b&x;</value><final>true</final></property>
<xi:include href="other.xml"><xi:fallback><property name="c" value="d"/></xi:fallback></xi:include></configuration>
"""
CHALLENGE = b'realm="r",nonce="n\\"x",qop="auth-conf",charset=utf-8'
EVENTS = [
    events.Event(n, 1.0 + n, 1, kind, data)
    for n, (kind, data) in enumerate([("submitted", {"job": JOB}), ("started", {"task": "worker:0", "attempt": 1, "pid": 7}),
                                      ("progressed", {"task": "worker:0", "attempt": 1, "progress": 0.5, "metrics": {"loss": 0.1}})])
]  # fmt: skip


def event_lines() -> bytes:
    return b"".join(events.encode(event) for event in EVENTS)


def archive(kind: str) -> bytes:
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("bin/run", "x" * 1000)
            packed.writestr("a.txt", "hello")
    else:
        with tarfile.open(fileobj=file, mode=f"w:{kind}") as tar:
            for name, content in (("bin/run", b"x" * 1000), ("a.txt", b"hello")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, "a.txt"
            tar.addfile(link)
    return file.getvalue()


def unpacked(content: bytes, folder: Path) -> None:
    (folder / "archive").write_bytes(content)
    try:
        archives.unpack(str(folder / "archive"), str(folder / "there"))
        outside = [
            path for path in (folder / "there").rglob("*") if not path.resolve().is_relative_to(folder / "there")
        ]
        assert not outside
    finally:
        shutil.rmtree(folder / "there", ignore_errors=True)
    assert {path.name for path in folder.iterdir()} == {"archive"}


def token_file() -> bytes:
    token = credentials.Token(b"id", b"password", "kind", "host:8020")
    return credentials.Credentials({"alias": token, "other": token}, {"secret": b"x"}).write()


def reply() -> bytes:
    def delimited(message: bytes) -> bytes:
        return bytes([len(message)]) + message

    head = wire.RpcResponseHeaderProto(callId=1, status=0, serverIpcVersionNum=9)
    return delimited(head.SerializeToString()) + delimited(b"body of it")


def recordio_file(folder: Path) -> bytes:
    with recordio.Writer(folder / "x", compressor="gzip", chunk=64) as writer:
        for number in range(20):
            writer.write(b"record %d" % number)
    return (folder / "x").read_bytes()


def read_recordio(content: bytes, folder: Path) -> None:
    offsets = [offset for offset, _ in recordio.chunks(lambda at, size: content[at : at + size], len(content), "x")]
    assert len(offsets) <= len(content)
    for _ in recordio.records(io.BytesIO(content), "x", 0, len(content)):
        pass


def message(checked: bool = False) -> bytes:
    import numpy

    arrays = {"ids": numpy.arange(5), "rows": numpy.ones((5, 4), numpy.float32)}
    return b"".join(bytes(part) for part in messages.buffers({"op": "push", "version": 3}, arrays, is_checked=checked))


def read_message(content: bytes, folder: Path) -> None:
    if len(content) < messages.PREFIX.size:
        return  # its reader waits for the rest
    prefix = messages.Prefix(content[: messages.PREFIX.size], 1 << 16, 1 << 20)
    end = messages.PREFIX.size + prefix.header
    if len(content) < end + prefix.payload:
        return
    header = messages.parse_header(content[messages.PREFIX.size : end])
    messages.parse_arrays(header, memoryview(content)[end : end + prefix.payload])


def read_journal(path: Path) -> None:
    for record in journal.records(str(path), may_be_torn=True):
        record.arrays()


def manifest() -> bytes:
    share = {"bytes": 5, "digest": hashlib.blake2b(b"share", digest_size=32).hexdigest(), "rows": 3}
    return json.dumps(
        {"format": ps_checkpoints._FORMAT, "version": 3, "sequence": 4, "shares": [share, share]}
    ).encode()


def read_manifest(content: bytes, folder: Path) -> None:
    place = folder / "version-3"
    place.mkdir(exist_ok=True)
    (place / "manifest-of-2.json").write_bytes(content)
    for index in range(2):
        (place / f"{ps_checkpoints.share_name(index, 2)}").write_bytes(b"share")
    for known in ps_checkpoints.manifests(str(folder)):
        for index in range(2):
            known.check(index)


def send(connection: socket.socket, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # the other end has read enough
        connection.sendall(frame)


def read_reservation(content: bytes, folder: Path) -> None:
    """The peer has the key, and sends what it likes."""
    key = b"k" * 32
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"n" * 32)
        channel = reservation._Channel(ours, key, is_server=True)
        frame = len(content).to_bytes(4, "big") + channel._code(b"request", content) + content
        sending = threading.Thread(target=send, args=(theirs, frame))  # a frame may be longer than the socket's buffer
        sending.start()
        try:
            channel.receive()
        finally:
            ours.close()
            sending.join()


def read_metrics(content: bytes, folder: Path) -> None:
    storage = LocalStorage(folder)
    (folder / metrics.FOLDER).mkdir(exist_ok=True)
    (folder / metrics.FOLDER / "1-1.samples").write_bytes(content)
    store = metrics.read_metrics(storage)
    assert store.totals(2.0) is not None


def samples() -> bytes:
    lines = [
        metrics.sample_line(1.0, "worker:0", {"cpu": 1.5, "memory": 1e6, "metric.loss": 0.5}),
        metrics.sample_line(2.0, "worker:0", {}),
    ]
    return metrics.header() + b"".join(lines)


def record_of_master() -> bytes:
    return epochs.signed(epochs.MasterRecord(3, ("h:1",), {"certificate": "x"}), "token")


def stored_set(folder: Path) -> bytes:
    for name in ("a", "b"):
        (folder / "ckpt" / name).mkdir(parents=True)
        (folder / "ckpt" / name / "weights").write_bytes(b"weights")
    (folder / "ckpt" / "link").symlink_to("a")
    assert (
        checkpoints.save_set(str(folder / "store"), str(folder / "ckpt"), "worker:0", 1, marks={"train": [[0, 5]]})
        is not None
    )
    shutil.copytree(folder / "store" / "files", folder / "bytes")
    (folder / "neighbour").mkdir()
    (folder / "neighbour" / "kept").touch()
    return (folder / "store" / "00000001.json").read_bytes()


def read_set(content: bytes, folder: Path) -> None:
    store, path = folder.parent / "store", folder / "there"
    (store / "00000001.json").write_bytes(content)
    found = checkpoints.newest(str(store))
    if found is not None:
        checkpoints.restore(str(store), str(path), 1)
        for made in path.rglob("*"):
            assert made.resolve().is_relative_to(path)
    shutil.rmtree(path, ignore_errors=True)
    if found is not None:
        checkpoints.prune(str(store), attrs.evolve(found, number=2), 1)
        checkpoints.prune(str(store), attrs.evolve(found, number=2, attempt=2), 1)
        shutil.copytree(folder.parent / "bytes", store / "files", dirs_exist_ok=True)
    assert (folder.parent / "neighbour" / "kept").exists()


def stored_state(folder: Path) -> bytes:
    import numpy

    state: dict[str, Any] = {
        "w": numpy.ones((3, 4)),
        "step": 3,
        "b": b"bytes",
        "more": [(1, 2.0), {"k": numpy.arange(3)}],
    }
    if find_spec("torch"):
        import torch

        state["t"] = torch.ones((2, 2))
    header, leaves = state_format.pack(7, state)
    header["number"] = 1
    content = bytearray(header["size"])
    for (offset, size), leaf in zip(header["buffers"], leaves, strict=True):
        content[offset : offset + size] = state_format.view_of(leaf.source()[0], size)
    header["checksums"] = [zlib.crc32(content[offset : offset + size]) for offset, size in header["buffers"]]
    (folder / "state").mkdir()
    (folder / "state" / "state-00000001.bin").write_bytes(content)
    return json.dumps(header).encode()


def read_state(content: bytes, folder: Path) -> None:
    place = folder.parent / "state"
    (place / "state-00000001.json").write_bytes(content)
    saver.newest_stored(stored_states.Folder(str(place)), "there", 0, lambda warning: None)


def as_text(read: Callable[[str], Any]) -> Callable[[bytes, Path], Any]:
    return lambda content, folder: read(content.decode("utf-8", "surrogateescape"))


def readers(folder: Path) -> dict[str, Reader]:
    example = tfrecords.encode([("a", "int64", [1, -1]), ("b", "bytes", [b"x", b"y"]), ("c", "float", [0.5])])
    packed = b"".join(bytes(part) for part in results.pack([{"a": [1, 2], "b": "x"}, {"a": [3], "b": "yy"}]))
    job = json.dumps(JOB).encode()
    return {
        "event": Reader(events.encode(EVENTS[1]), lambda content, _: events.decode(content), (ValueError, TrainmasterError)),
        "document": Reader(job, lambda content, _: documents.parse(content, "job.json")),
        "job.json": Reader(job, lambda content, _: job_from(documents.parse(content, "job.json"))),
        "job file": Reader(YAML, lambda content, _: job_from(jobfile.parse(content, "job.yaml")[0])),
        "job file of JSON": Reader(job, lambda content, _: job_from(jobfile.parse(content, "job.yaml")[0])),
        "foreign JSON": Reader(job, lambda content, _: foreign.json_in(content), (ValueError,)),
        "handle": Reader(b"yarn://cluster/digits-k3x7qa", as_text(handles.parse)),
        "Hadoop's site file": Reader(SITE, at_file(lambda path: whole(sitefile.read(path)), "core-site.xml"), (ConfError,)),
        "Hadoop's reply": Reader(reply(), lambda content, _: wire.read_reply(content, "there"), (Garbled,)),
        "Hadoop's tokens": Reader(token_file(), lambda content, _: credentials.Credentials.read(content), (Garbled,)),
        "SASL": Reader(CHALLENGE, lambda content, _: sasl.read_directives(content), (AuthenticationFailed,)),
        "access list": Reader(b"ann,bob group1,group2", as_text(acls.AccessList.parse)),
        **{f"archive {kind}": Reader(archive(kind), unpacked) for kind in ("zip", "gz", "xz", "")},
        "RecordIO": Reader(recordio_file(folder), read_recordio, (DamagedFile,)),
        "Example": Reader(example, lambda content, _: tfrecords.decode(content), (ValueError,)),
        "results of a feed": Reader(packed, lambda content, _: results.unpack(content), (ValueError,)),
        "message of a parameter server": Reader(message(), read_message, (messages.Malformed,)),
        "log of a parameter server": Reader(message(checked=True) * 3, at_file(read_journal, "segment-1-1.log"), (journal.Damaged,)),
        "manifest of a parameter server": Reader(manifest(), read_manifest, (journal.Damaged, TrainmasterError, OSError)),
        "checkpoint set": Reader(stored_set(folder), read_set),
        "state of checkpoint.save": Reader(stored_state(folder), read_state, ()),
        "reservation": Reader(json.dumps({"type": "REG", "data": {"host": "h", "port": 1}}).encode(), read_reservation, (ValueError,)),
        "metrics": Reader(samples(), read_metrics),
        "record of the master": Reader(record_of_master(), lambda content, _: epochs.verified(content, "token")),
    }  # fmt: skip


def try_changed(name: str, folder: Path, seeds: Iterable[int]) -> None:
    """Read one changed input for each seed. Fails where a reader raises another error than its own, or one before has changed the next."""
    reader = readers(folder)[name]
    folder = folder / "there"
    folder.mkdir()
    reader.read(reader.sound, folder)
    for seed in seeds:
        content = mutated(reader.sound, random.Random(seed))
        try:
            reader.read(content, folder)
        except reader.refuses:
            pass
        except BaseException as error:
            raise AssertionError(
                f"seed {seed}: {type(error).__name__}: {str(error)!a:.300}; input {content!r:.1000}"
            ) from error


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory whose path is short: errors and links are not cut."""
    with tempfile.TemporaryDirectory(prefix="tm-") as made:
        yield Path(made)


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_input_is_read_or_refused(name: str, folder: Path, seeds: Seeds) -> None:
    try_changed(name, folder, seeds(MOST))


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_changed_inputs_are_read_or_refused(name: str, folder: Path, seeds: Seeds) -> None:
    try_changed(name, folder, seeds(SOAK))


def test_all_readers_are_tried(folder: Path) -> None:
    assert sorted(readers(folder)) == sorted(NAMES)
