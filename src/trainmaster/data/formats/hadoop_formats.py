"""Hadoop's own InputFormats and OutputFormats, `format: hadoop:CLASS`, for inputs and outputs `as: stream`.

    master   getSplits, once a job -> the listing: a file a split, its stamp the split as Hadoop serializes it
    agent    the splits of its task -> a JVM beside the program -> stdin | program | stdout -> a JVM -> part files, then committed

The splits are computed once because not every InputFormat gives the same twice (CombineFileInputFormat groups blocks as the NameNode
happens to order their places); all tasks, attempts and masters then divide one list.

`options` of such an input or output are of two kinds. A name with a dot is a setting of Hadoop's, handed to the class as it is. The others
are ours, a table: `OPTIONS`.
"""

from __future__ import annotations

import base64
import contextlib
import difflib
import io
import os
import re
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from trainmaster.core.errors import BadInput
from trainmaster.core.input.splits import File, Listing
from trainmaster.core.spec.job import HADOOP, Input, Output
from trainmaster.core.spec.quantities import SIZE_WORDS, parse_bytes
from trainmaster.data.formats import jvm
from trainmaster.data.store.stores import local_path
from trainmaster.data.streams import PART_SIZE

MIB = 2**20
BESIDE_HEAP = 192 * MIB  # of a JVM, beside its heap: classes, compiled code, stacks
RECORDS = ("value", "key-value", "framed", "framed-key-value")
_CLASS = re.compile(r"^[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*$")
# The classes that an OutputFormat is given, where the options do not say: keys, values.
_TYPES = {
    "value": ("NullWritable", "Text"), "key-value": ("Text", "Text"),
    "framed": ("NullWritable", "BytesWritable"), "framed-key-value": ("BytesWritable", "BytesWritable"),
}  # fmt: skip
_KEYS = ("mapreduce.job.output.key.class", "mapreduce.job.output.value.class")


@attrs.frozen(slots=True)
class Settings:
    """A class, and how it is used."""

    name: str
    about: str  # the key of the job file
    conf: Mapping[str, str]
    records: str = "value"
    cache: int = 0  # bytes
    heap: int = 256 * MIB
    part: int = PART_SIZE
    jars: tuple[str, ...] = ()


def _records(text: str) -> str:
    if text not in RECORDS:
        raise ValueError(f"expected one of {', '.join(RECORDS)}")
    return text


def _size(text: str) -> int:
    if not (size := parse_bytes(text)):
        raise ValueError(f"expected a size: {SIZE_WORDS}")
    return size


OPTIONS: dict[str, Callable[[str], Any]] = {
    "records": _records,
    "cache": _size,
    "heap": _size,
    "part": _size,
    "jars": lambda text: tuple(jar.strip() for jar in text.split(",") if jar.strip()),
}


def settings(thing: Input | Output, kind: str = "") -> Settings:
    """What an input or output says of its class. Raises BadInput, naming the key."""
    at = f"{kind or ('inputs' if isinstance(thing, Input) else 'outputs')}.{thing.name}"
    return settings_of(thing.format, thing.options, f"{at}.format")


def settings_of(name: str, options: Mapping[str, str], about: str) -> Settings:
    """The same of what an order says."""
    own: dict[str, Any] = {}
    for option, value in options.items():
        if "." in option:
            continue
        place = f"{about.rpartition('.')[0]}.options.{option}"
        if option not in OPTIONS:
            near = difflib.get_close_matches(option, OPTIONS, 1)
            raise BadInput(
                f"{option} is no option of a Hadoop format", place=place, anchor="unknown-key",
                mend=f"do you mean {near[0]}?" if near else f"one of {', '.join(OPTIONS)}, or a setting of Hadoop's with dots",
            )  # fmt: skip
        try:
            own[option] = OPTIONS[option](value)
        except ValueError as error:
            raise BadInput(str(error), place=f"{place}: {value}", anchor="wrong-value") from None
    conf = {option: value for option, value in options.items() if "." in option}
    return Settings(name.removeprefix(HADOOP), about, conf, **own)


def check(thing: Input | Output) -> None:
    """Refuse, at submit, what can never work. Raises BadInput."""
    found = settings(thing)
    if not thing.format.startswith(HADOOP):
        raise BadInput(
            f"options are for Hadoop's formats, and this is format: {thing.format}",
            place=f"{found.about.rpartition('.')[0]}.options", mend="leave them out, or say format: hadoop:CLASS", anchor="unknown-format",
        )  # fmt: skip
    if thing.as_ != "stream":
        raise BadInput(
            f"a Hadoop format gives and takes streams of records, and this is as: {thing.as_}",
            place=found.about, mend="say as: stream", anchor="unknown-format",
        )  # fmt: skip
    if not _CLASS.match(found.name):
        raise BadInput(
            f"{found.name or 'nothing'} is no name of a Java class", place=f"{found.about}: {thing.format}",
            mend="write it in full: hadoop:org.apache.hadoop.mapred.TextInputFormat", anchor="unknown-format",
        )  # fmt: skip


def memory(thing: Input | Output) -> int:
    """What its JVM needs in the container, bytes."""
    return settings(thing).heap + BESIDE_HEAP


# -- the splits --


def list_splits(given: Input, readers: int, environ: Mapping[str, str], cwd: str, archive: str = "") -> Listing:
    """The splits that the class makes of the input. `readers`: how many tasks there are, a hint for classes of the old API. `archive`: the
    shipped files, for jars that are not in `cwd`. Raises JavaFailed.
    """
    found = settings(given)
    with (
        tempfile.TemporaryDirectory(prefix="trainmaster-") as folder,
        open(os.path.join(folder, "splits"), "w+b") as file,
    ):
        told = {
            "act": "splits",
            "class": found.name,
            "hint": found.conf.get("mapreduce.job.maps", str(max(readers, 1))),
        }
        call = _call(found, told, _input_conf(found, given.url), environ, cwd, folder, archive=archive)
        jvm.Jvm(call, stdout=file.fileno()).finish(lambda words: None, lambda line: None)
        file.seek(0)
        return Listing("", tuple(_splits(io.BytesIO(file.read()))))


def _splits(data: io.BytesIO) -> list[File]:
    found = []
    for number in range(struct.unpack(">i", data.read(4))[0]):
        name = _text(data)[:200]
        (size,) = struct.unpack(">q", data.read(8))
        hosts = tuple(dict.fromkeys(host for host in _text(data).split("\n") if host))
        stamp = base64.b64encode(_bytes(data)).decode()
        found.append(File(f"{number}:{name}", max(size, 0), hosts, stamp))
    return found


def _text(data: io.BytesIO) -> str:
    return _bytes(data).decode(errors="replace")


def _bytes(data: io.BytesIO) -> bytes:
    return data.read(struct.unpack(">i", data.read(4))[0])


def _input_conf(found: Settings, url: str) -> dict[str, str]:
    return {"mapreduce.input.fileinputformat.inputdir": hadoop_path(url), **found.conf}


def hadoop_path(url: str) -> str:
    """A place as Hadoop writes it: a path of this machine is no path of its default file system."""
    path = local_path(url)
    return url if path is None else f"file://{path}"


# -- the records --


def reading(given: Mapping[str, Any], environ: Mapping[str, str], cwd: str, folder: str) -> jvm.Call:
    """The JVM that writes the records of an order's input to its standard output; the cache is in `folder`. Raises JavaFailed."""
    found = settings_of(given["format"], given["options"], f"inputs.{given['name']}.format")
    told = {
        "act": "read", "class": found.name, "records": found.records, "epochs": str(given["epochs"]), "folder": folder,
        "shuffle": "true" if given["shuffle"] else "false", "seed": str(given["seed"]), "cache": str(found.cache),
    }  # fmt: skip
    splits = [base64.b64decode(stamp) for _, stamp in given["splits"]]
    return _call(found, told, _input_conf(found, given["url"]), environ, cwd, folder, splits)


def writing(made: Mapping[str, Any], environ: Mapping[str, str], cwd: str, folder: str) -> jvm.Call:
    """The JVM that puts records from its standard input into files below the output's directory. Raises JavaFailed."""
    found = settings_of(made["format"], made["options"], f"outputs.{made['name']}.format")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(made["local"])  # of an attempt before
    types = {key: f"org.apache.hadoop.io.{name}" for key, name in zip(_KEYS, _TYPES[found.records], strict=True)}
    conf = {
        **types, "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false", **found.conf,
        "mapreduce.output.fileoutputformat.outputdir": f"file://{made['local']}",
        "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",  # no .crc beside each file
    }  # fmt: skip
    told = {"act": "write", "class": found.name, "records": found.records, "part": str(found.part)}
    return _call(found, told, conf, environ, cwd, folder)


def _call(
    found: Settings, told: Mapping[str, str], conf: Mapping[str, str], environ: Mapping[str, str], cwd: str, folder: str,
    splits: list[bytes] | None = None, archive: str = "",
) -> jvm.Call:  # fmt: skip
    jars = [_jar(found, jar, cwd, folder, archive) for jar in found.jars]
    wanted = jvm.request(told, conf, splits or ())
    flags = ["-XX:TieredStopAtLevel=1"] if told["act"] == "splits" else []  # too short to compile well
    return jvm.call(wanted, found.about, environ=environ, cwd=cwd or "/", heap=found.heap, jars=jars, flags=flags)


def _jar(found: Settings, jar: str, cwd: str, folder: str, archive: str) -> str:
    """A jar of the job's: shipped with its files, or fetched from a URL."""
    if "://" not in jar and os.path.exists(path := os.path.join(cwd, jar)):
        return path
    content = _fetched(jar) if "://" in jar else _packed(archive, jar)
    if content is not None:
        path = os.path.join(folder, os.path.basename(jar))
        with open(path, "wb") as file:
            file.write(content)
        return path
    raise jvm.JavaFailed(
        f"the jar {jar} does not exist", place=f"{found.about.rpartition('.')[0]}.options.jars: {jar}",
        mend="name one of `files`, relative to the working directory, or a URL", anchor="no-file",
    )  # fmt: skip


def _fetched(url: str) -> bytes | None:
    from trainmaster.data.store.stores import store_for

    place, _, name = url.rpartition("/")
    return store_for(place).get(name)


def _packed(archive: str, name: str) -> bytes | None:
    if not archive or not os.path.exists(archive):
        return None
    with tarfile.open(archive) as packed, contextlib.suppress(KeyError):
        file = packed.extractfile(os.path.normpath(name))
        return file.read() if file is not None else None
    return None
