"""Hadoop's own InputFormats and OutputFormats, `format: hadoop:CLASS`, for inputs and outputs `as: stream`.

    master   getSplits, once a job -> the listing: one file per split, its stamp the split as Hadoop serializes it
    agent    the splits of its task -> a JVM beside the program -> stdin | program | stdout -> a JVM -> part files, then committed

The splits are computed once because not every InputFormat gives the same twice (CombineFileInputFormat groups blocks as the NameNode
happens to order their places); all tasks, attempts and masters then divide one list.

`options` of such an input or output are of two kinds. A name with a dot is a setting of Hadoop's, handed to the class as it is. The others
are ours: the table `OPTIONS`.
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
from trainmaster.core.input.splits import File, Listing, split_urls
from trainmaster.core.spec.job import HADOOP, Input, Output
from trainmaster.core.spec.quantities import SIZE_WORDS, parse_bytes
from trainmaster.data.formats import jvm
from trainmaster.data.store.stores import local_path
from trainmaster.data.streams import PART_SIZE
from trainmaster.runtime.patterns import fixed_prefix

MIB = 2**20
BESIDE_HEAP = 192 * MIB  # of a JVM, in addition to its heap: classes, compiled code, stacks
RECORDS = ("value", "key-value", "framed", "framed-key-value")
_CLASS = re.compile(r"^[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*$")
# The classes of keys and values that an OutputFormat gets where the options name none.
_TYPES = {
    "value": ("NullWritable", "Text"), "key-value": ("Text", "Text"),
    "framed": ("NullWritable", "BytesWritable"), "framed-key-value": ("BytesWritable", "BytesWritable"),
}  # fmt: skip
_KEYS = ("mapreduce.job.output.key.class", "mapreduce.job.output.value.class")


@attrs.frozen(slots=True)
class Settings:
    """A class of Hadoop's and how to use it."""

    name: str
    about: str  # the key of the job file
    conf: Mapping[str, str]
    records: str = "value"
    cache: int = 0  # bytes
    heap: int = 256 * MIB
    part: int = PART_SIZE
    jars: tuple[str, ...] = ()


def _parse_records(text: str) -> str:
    if text not in RECORDS:
        raise ValueError(f"expected one of {', '.join(RECORDS)}")
    return text


def _parse_size(text: str) -> int:
    if not (size := parse_bytes(text)):
        raise ValueError(f"expected a size: {SIZE_WORDS}")
    return size


OPTIONS: dict[str, Callable[[str], Any]] = {
    "records": _parse_records,
    "cache": _parse_size,
    "heap": _parse_size,
    "part": _parse_size,
    "jars": lambda text: tuple(jar.strip() for jar in text.split(",") if jar.strip()),
}


def settings(entry: Input | Output, kind: str = "") -> Settings:
    """Return the settings of an input or output's class. Raises BadInput, naming the key."""
    at = f"{kind or ('inputs' if isinstance(entry, Input) else 'outputs')}.{entry.name}"
    return settings_of(entry.format, entry.options, f"{at}.format")


def settings_of(name: str, options: Mapping[str, str], about: str) -> Settings:
    """Return the settings for a format and options as an order carries them. Raises BadInput."""
    own: dict[str, Any] = {}
    for option, value in options.items():
        if "." in option:
            continue
        place = f"{about.rpartition('.')[0]}.options.{option}"
        if option not in OPTIONS:
            near = difflib.get_close_matches(option, OPTIONS, 1)
            raise BadInput(
                f"{option} is not an option of a Hadoop format", place=place, anchor="unknown-key",
                mend=f"do you mean {near[0]}?" if near else f"one of {', '.join(OPTIONS)}, or a setting of Hadoop's with dots",
            )  # fmt: skip
        try:
            own[option] = OPTIONS[option](value)
        except ValueError as error:
            raise BadInput(str(error), place=f"{place}: {value}", anchor="wrong-value") from None
    conf = {option: value for option, value in options.items() if "." in option}
    return Settings(name.removeprefix(HADOOP), about, conf, **own)


def check(entry: Input | Output) -> None:
    """Refuse, at submit, an input or output that can never work. Raises BadInput."""
    spec = settings(entry)
    if not entry.format.startswith(HADOOP):
        raise BadInput(
            f"options are for Hadoop's formats, and this is format: {entry.format}",
            place=f"{spec.about.rpartition('.')[0]}.options", mend="leave them out, or say format: hadoop:CLASS", anchor="unknown-format",
        )  # fmt: skip
    if entry.as_ != "stream":
        raise BadInput(
            f"a Hadoop format gives and takes streams of records, and this is as: {entry.as_}",
            place=spec.about, mend="say as: stream", anchor="unknown-format",
        )  # fmt: skip
    if not _CLASS.match(spec.name):
        raise BadInput(
            f"{spec.name or 'nothing'} is not the name of a Java class", place=f"{spec.about}: {entry.format}",
            mend="write it in full: hadoop:org.apache.hadoop.mapred.TextInputFormat", anchor="unknown-format",
        )  # fmt: skip
    for url in entry.urls if isinstance(entry, Input) else ():
        _check_folder(url, spec)


def _check_folder(url: str, spec: Settings) -> None:
    """Raise BadInput for a path of this machine below a folder whose name Hadoop takes for a pattern, or for several names."""
    folder = fixed_prefix(local_path(url) or "")
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    if any(letter in folder for letter in "*?[]{},\\"):
        raise BadInput(
            f"Hadoop takes the name of the folder {folder} for a pattern", place=f"{spec.about.rpartition('.')[0]}.url: {url}",
            mend="give the folder a name without any of * ? [ ] { } , \\", anchor="wrong-value",
        )  # fmt: skip


def memory(entry: Input | Output) -> int:
    """Return the memory that the entry's JVM needs in the container, in bytes."""
    return settings(entry).heap + BESIDE_HEAP


# -- the splits --


def list_splits(input_: Input, readers: int, environ: Mapping[str, str], cwd: str, archive: str = "") -> Listing:
    """Return the splits that the class makes of the input. `readers`: the number of tasks, a hint for classes of the old API. `archive`:
    the shipped files, for jars that are not in `cwd`. Raises JavaFailed.
    """
    spec = settings(input_)
    with (
        tempfile.TemporaryDirectory(prefix="trainmaster-") as folder,
        open(os.path.join(folder, "splits"), "w+b") as file,
    ):
        order = {
            "act": "splits",
            "class": spec.name,
            "hint": spec.conf.get("mapreduce.job.maps", str(max(readers, 1))),
        }
        call = _jvm_call(spec, order, _input_conf(spec, input_.location), environ, cwd, folder, archive=archive)
        jvm.Jvm(call, stdout=file.fileno()).finish(lambda words: None, lambda line: None)
        file.seek(0)
        return Listing("", tuple(_read_splits(io.BytesIO(file.read()))))


def _read_splits(data: io.BytesIO) -> list[File]:
    splits = []
    for number in range(struct.unpack(">i", data.read(4))[0]):
        name = _read_text(data)[:200]
        (size,) = struct.unpack(">q", data.read(8))
        hosts = tuple(dict.fromkeys(host for host in _read_text(data).split("\n") if host))
        stamp = base64.b64encode(_read_bytes(data)).decode()
        splits.append(File(f"{number}:{name}", max(size, 0), hosts, stamp))
    return splits


def _read_text(data: io.BytesIO) -> str:
    return _read_bytes(data).decode(errors="replace")


def _read_bytes(data: io.BytesIO) -> bytes:
    return data.read(struct.unpack(">i", data.read(4))[0])


def _input_conf(spec: Settings, url: str) -> dict[str, str]:
    return {"mapreduce.input.fileinputformat.inputdir": ",".join(map(hadoop_path, split_urls(url))), **spec.conf}


def hadoop_path(url: str) -> str:
    """Return a URL as Hadoop writes it: a path of this machine gets `file://`, since Hadoop has another default file system."""
    path = local_path(url)
    return url if path is None else f"file://{path}"


# -- the records --


def reading(source: Mapping[str, Any], environ: Mapping[str, str], cwd: str, folder: str) -> jvm.Call:
    """Return the call of the JVM that writes an order's input records to its stdout; the cache is in `folder`. Raises JavaFailed."""
    spec = settings_of(source["format"], source["options"], f"inputs.{source['name']}.format")
    order = {
        "act": "read", "class": spec.name, "records": spec.records, "epochs": str(source["epochs"]), "folder": folder,
        "shuffle": "true" if source["shuffle"] else "false", "seed": str(source["seed"]), "cache": str(spec.cache),
    }  # fmt: skip
    splits = [base64.b64decode(stamp) for _, stamp in source["splits"]]
    return _jvm_call(spec, order, _input_conf(spec, source["url"]), environ, cwd, folder, splits)


def writing(sink: Mapping[str, Any], environ: Mapping[str, str], cwd: str, folder: str) -> jvm.Call:
    """Return the call of the JVM that puts records from its stdin into files below the output's directory. Raises JavaFailed."""
    spec = settings_of(sink["format"], sink["options"], f"outputs.{sink['name']}.format")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(sink["local"])  # of an attempt before
    types = {key: f"org.apache.hadoop.io.{name}" for key, name in zip(_KEYS, _TYPES[spec.records], strict=True)}
    conf = {
        **types, "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false", **spec.conf,
        "mapreduce.output.fileoutputformat.outputdir": f"file://{sink['local']}",
        "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",  # no .crc beside each file
    }  # fmt: skip
    order = {"act": "write", "class": spec.name, "records": spec.records, "part": str(spec.part)}
    return _jvm_call(spec, order, conf, environ, cwd, folder)


def _jvm_call(
    spec: Settings, order: Mapping[str, str], conf: Mapping[str, str], environ: Mapping[str, str], cwd: str, folder: str,
    splits: list[bytes] | None = None, archive: str = "",
) -> jvm.Call:  # fmt: skip
    jars = [_local_jar(spec, jar, cwd, folder, archive) for jar in spec.jars]
    request = jvm.request(order, conf, splits or ())
    flags = ["-XX:TieredStopAtLevel=1"] if order["act"] == "splits" else []  # too short to compile well
    return jvm.call(request, spec.about, environ=environ, cwd=cwd or "/", heap=spec.heap, jars=jars, flags=flags)


def _local_jar(spec: Settings, jar: str, cwd: str, folder: str, archive: str) -> str:
    """Return the path of one of the job's jars, shipped with its files or fetched from a URL. Raises JavaFailed."""
    if "://" not in jar and os.path.exists(path := os.path.join(cwd, jar)):
        return path
    content = _fetch_jar(jar) if "://" in jar else _packed_jar(archive, jar)
    if content is not None:
        path = os.path.join(folder, os.path.basename(jar))
        with open(path, "wb") as file:
            file.write(content)
        return path
    raise jvm.JavaFailed(
        f"the jar {jar} does not exist", place=f"{spec.about.rpartition('.')[0]}.options.jars: {jar}",
        mend="name one of `files`, relative to the working directory, or a URL", anchor="no-file",
    )  # fmt: skip


def _fetch_jar(url: str) -> bytes | None:
    from trainmaster.data.store.stores import store_for

    place, _, name = url.rpartition("/")
    return store_for(place).get(name)


def _packed_jar(archive: str, name: str) -> bytes | None:
    if not archive or not os.path.exists(archive):
        return None
    with tarfile.open(archive) as packed, contextlib.suppress(KeyError):
        file = packed.extractfile(os.path.normpath(name))
        return file.read() if file is not None else None
    return None
