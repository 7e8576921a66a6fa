"""A JVM beside a program, for the one thing that needs Java: the Hadoop classes that read or write its records.

It is found where Hadoop's own tools find theirs: JAVA_HOME, HADOOP_CLASSPATH, HADOOP_HOME and HADOOP_CONF_DIR in the program's environment,
`hadoop classpath`, and what yarn-site.xml and mapred-site.xml say for applications. Our few classes are in `java/formats.jar` of this
package, which `make java` builds; where it was not built they are compiled here, once, with the node's own javac against Hadoop's own jars.

What to do goes over a pipe that stays open as long as we live, so that a JVM never outlives its agent. Lines of its standard error that
begin with a mark are for us, all others are told as they are; what failed is the first line of the exception.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from trainmaster.core.errors import EngineFailed
from trainmaster.hadoop import sitefile
from trainmaster.hadoop.errors import ConfError
from trainmaster.host import children

JAVA = Path(__file__).parents[1] / "java"
JAR = JAVA / "formats.jar"
MAIN = "trainmaster.Formats"
RELEASE = "8"  # of the class files: the oldest Java that runs a Hadoop of today
MARK = b"\x1e"
_CARRIED = ("JAVA_HOME", "HADOOP_", "YARN_", "KRB5")  # beginnings of names that a container has from its engine
_NEEDED = (("hadoop-common-", "hadoop-client-api-"), ("hadoop-mapreduce-client-core-", "hadoop-client-api-"))
_SHARE = "$HADOOP_COMMON_HOME/share/hadoop"
_CLASSPATHS = {  # with what Hadoop takes where the key is not set
    "yarn-site.xml": (
        "yarn.application.classpath",
        f"{_SHARE}/common/*,{_SHARE}/common/lib/*,$HADOOP_HDFS_HOME/share/hadoop/hdfs/*,$HADOOP_HDFS_HOME/share/hadoop/hdfs/lib/*",
    ),
    "mapred-site.xml": (
        "mapreduce.application.classpath",
        f"$HADOOP_MAPRED_HOME/share/hadoop/mapreduce/*,{_SHARE}/mapreduce/*",
    ),
}


class JavaFailed(EngineFailed):
    """Java or a class of it is not there, or it failed."""


@attrs.frozen(slots=True)
class Call:
    """What a JVM is started with: its command but for the pipe, and what it is told over that."""

    command: Sequence[str]
    request: bytes
    environ: Mapping[str, str]
    cwd: str
    about: str  # what a failure is about: the key of the job file


class Jvm:
    """One that runs."""

    def __init__(self, call: Call, *, stdin: int | None = None, stdout: int | None = None) -> None:
        self._call = call
        self.failure = ""
        self._last = ""
        read, self._control = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = children.start(
                [*call.command, f"/dev/fd/{read}"], stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.DEVNULL if stdout is None else stdout, stderr=subprocess.PIPE, pass_fds=(read,),
                env=call.environ, cwd=call.cwd, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            os.close(self._control)
            raise
        finally:
            os.close(read)

    def kill(self) -> None:
        self._process.kill()

    def finish(self, heard: Callable[[str], None], said: Callable[[str], None]) -> None:
        """See it to its end: `heard` its lines for us, `said` all others. Raises JavaFailed where it does not end well."""
        teller = threading.Thread(target=self._tell, name="java", daemon=True)  # it reads when it has begun
        teller.start()
        assert self._process.stderr is not None
        try:
            with self._process.stderr as lines:
                for line in lines:
                    self._line(line, heard, said)
            status = self._process.wait()
        finally:
            self._process.kill()
            self._process.wait()
            children.forget(self._process.pid)
            teller.join()
            os.close(self._control)
        if status:
            how = f"it ended with status {status}" if status > 0 else f"it was killed by signal {-status}"
            raise JavaFailed(
                self.failure or f"Java failed: {self._last or how}"[:500], place=self._call.about,
                mend="see what Java said: tm logs", anchor="hadoop-format",
            )  # fmt: skip

    def _tell(self) -> None:
        rest = memoryview(self._call.request)
        with contextlib.suppress(BrokenPipeError):
            while rest:
                rest = rest[os.write(self._control, rest) :]

    def _line(self, line: bytes, heard: Callable[[str], None], said: Callable[[str], None]) -> None:
        text = line.rstrip(b"\n").decode(errors="replace")
        if not line.startswith(MARK):
            self._last = text or self._last
            said(text)
        elif text[1:].startswith("failed "):
            self.failure = text[8:].strip()[:500]
        else:
            heard(text[1:])


def request(told: Mapping[str, str], conf: Mapping[str, str], splits: Iterable[bytes] = ()) -> bytes:
    """What goes over the pipe, as `Formats.java` reads it."""
    found = [bytes(one) for one in splits]
    parts: list[bytes] = []
    for texts in (told, conf):
        parts.append(struct.pack(">i", len(texts)))
        parts += [_counted(text.encode()) for pair in texts.items() for text in pair]
    parts.append(struct.pack(">i", len(found)))
    return b"".join([*parts, *map(_counted, found)])


def _counted(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def call(
    wanted: bytes, about: str, *, environ: Mapping[str, str], cwd: str, heap: int, jars: Sequence[str] = (), flags: Sequence[str] = ()
) -> Call:  # fmt: skip
    """The JVM for a request, as this node has it. `about`: the key of the job file. Raises JavaFailed, naming the node."""
    whole = {name: value for name, value in os.environ.items() if name.startswith(_CARRIED)} | dict(environ)
    try:
        java = program("java", whole)
        hadoop = classpath(whole)
        command = [
            java, "-XX:+UseSerialGC", "-XX:-UsePerfData",
            f"-Dlog4j.configuration=file:{JAVA / 'log4j.properties'}", *flags,
            *(flag for name in ("HADOOP_OPTS", "HADOOP_CLIENT_OPTS") for flag in shlex.split(whole.get(name, ""))),
            f"-Xmx{max(heap >> 20, 16)}m",  # the last one counts, and is what the container has room for
            "-cp", ":".join([ours(whole, hadoop), *jars, *hadoop]), MAIN,
        ]  # fmt: skip
    except JavaFailed as error:
        error.place = about
        raise
    return Call(command, wanted, whole, cwd, about)


def program(name: str, environ: Mapping[str, str]) -> str:
    """The path of java or javac. Raises JavaFailed where there is none."""
    home = environ.get("JAVA_HOME", "")
    found = shutil.which(f"{home}/bin/{name}") if home else None
    found = found or shutil.which(name, path=environ.get("PATH"))
    if found is None:
        looked = f"{home}/bin and PATH" if home else "PATH, and JAVA_HOME is not set"
        raise JavaFailed(
            f"no {name} on {socket.gethostname()}: looked in {looked}",
            mend="Hadoop's formats need Java there: install it, or set JAVA_HOME in roles.ROLE.env", anchor="no-java",
        )  # fmt: skip
    return found


def classpath(environ: Mapping[str, str]) -> list[str]:
    """Where Hadoop's classes and its configuration are. Raises JavaFailed where they are not."""
    conf = environ.get("HADOOP_CONF_DIR", "")
    found = [conf] if conf else []
    found += [entry for entry in environ.get("HADOOP_CLASSPATH", "").split(":") if entry]
    if not _complete(found):
        found += _of_hadoop(environ) or _of_conf(conf, environ)
    if not _complete(found):
        raise JavaFailed(
            f"no Hadoop classes on {socket.gethostname()}: looked at HADOOP_CLASSPATH, HADOOP_HOME, hadoop on PATH, and "
            f"yarn.application.classpath in HADOOP_CONF_DIR {conf or '(not set)'}",
            mend="set HADOOP_CLASSPATH or HADOOP_HOME in roles.ROLE.env", anchor="no-hadoop-classes",
        )  # fmt: skip
    return list(dict.fromkeys(found))


def _of_hadoop(environ: Mapping[str, str]) -> list[str]:
    """What `hadoop classpath` says, where there is one."""
    homes = [environ[name] for name in ("HADOOP_HOME", "HADOOP_COMMON_HOME") if environ.get(name)]
    tools = [shutil.which(f"{home}/bin/hadoop") for home in homes] + [shutil.which("hadoop", path=environ.get("PATH"))]
    for tool in filter(None, tools):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            asked = children.run([tool, "classpath"], env=environ, timeout=60)
            if not asked.returncode and (lines := asked.stdout.strip().splitlines()):
                return [entry for entry in lines[-1].split(":") if entry]
    return []


def _of_conf(conf: str, environ: Mapping[str, str]) -> list[str]:
    """What the cluster gives to applications."""
    found: list[str] = []
    for file, (key, usual) in _CLASSPATHS.items():
        for entry in (_property(Path(conf, file), key) or usual).replace("{{", "${").replace("}}", "}").split(","):
            entry = entry.strip()
            for name in sorted(environ, key=len, reverse=True):
                entry = entry.replace(f"${{{name}}}", environ[name]).replace(f"${name}", environ[name])
            if entry and "$" not in entry:
                found.append(entry)
    return found


def _property(path: Path, key: str) -> str:
    """A value of one of Hadoop's files, whose other values may be wrong."""
    try:
        return next((found.value for found in sitefile.read(path) if found.name == key), "")
    except ConfError:
        return ""


def _complete(entries: Iterable[str]) -> bool:
    names: set[str] = set()
    for entry in entries:
        if entry.endswith("*"):
            with contextlib.suppress(OSError):
                names.update(os.listdir(entry[:-1] or "."))
        else:
            names.add(os.path.basename(entry))
    return all(any(name.startswith(needed) for name in names) for needed in _NEEDED)


def ours(environ: Mapping[str, str], hadoop: Sequence[str]) -> str:
    """Our classes: those of this package, else made here and kept for the next. Raises JavaFailed."""
    if JAR.exists():
        return str(JAR)
    sources = sorted(JAVA.glob("trainmaster/*.java"))
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    place = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "/", ".cache"), "trainmaster", "java")
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(place, os.W_OK) and place.stat().st_uid == os.getuid()
    except OSError:
        writable = False
    if not writable:  # a container's user may have no home; its temporary directory is the container's own
        place = Path(tempfile.mkdtemp(prefix="trainmaster-java-"))
    made = place / f"formats-{digest}.jar"
    if not made.exists():
        build(made, program("javac", environ), hadoop)
    return str(made)


def build(jar: Path, javac: str, hadoop: Sequence[str]) -> None:
    """Compile our classes into `jar`, which appears whole. Raises JavaFailed."""
    sources = sorted(str(source) for source in JAVA.glob("trainmaster/*.java"))
    with tempfile.TemporaryDirectory(prefix=".formats-", dir=jar.parent) as folder:
        command = [javac, "--release", RELEASE, "-nowarn", "-Xlint:none", "-cp", ":".join(hadoop), "-d", folder]
        done = children.run([*command, *sources])
        if done.returncode:
            said = next((line for line in done.stderr.splitlines() if "error" in line), f"status {done.returncode}")
            raise JavaFailed(
                f"the classes that read Hadoop's formats cannot be compiled on {socket.gethostname()}: {said}",
                mend="make java, where there is a JDK >= 9, puts them into this package", anchor="hadoop-format",
            )  # fmt: skip
        draft = Path(folder, "formats.jar")
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(folder).rglob("*.class")):
                entry = zipfile.ZipInfo(str(path.relative_to(folder)))  # without a time: the same classes, the same jar
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        os.replace(draft, jar)
