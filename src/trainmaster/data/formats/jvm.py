"""A JVM that runs beside a program, for the one task that needs Java: the Hadoop classes that read or write its records.

It is found where Hadoop's own tools find theirs: JAVA_HOME, HADOOP_CLASSPATH, HADOOP_HOME and HADOOP_CONF_DIR in the program's environment,
`hadoop classpath`, and what yarn-site.xml and mapred-site.xml say for applications. Our few classes are in `java/formats.jar` of this
package, which `make java` builds; where it was not built they are compiled here, once, with the node's own javac against Hadoop's own jars.

The request goes over a pipe that stays open as long as we live, so that a JVM never outlives its agent. Lines of its standard error that
begin with a mark are reports to us, all others are passed on as they are; the failure is the first line of the exception.
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
_CLASSPATHS = {  # file -> the key, and Hadoop's own default for it
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
    """Java or one of its classes is missing, or it failed."""


@attrs.frozen(slots=True)
class Call:
    """The start of a JVM: its command without the pipe, and the request that goes over the pipe."""

    command: Sequence[str]
    request: bytes
    environ: Mapping[str, str]
    cwd: str
    about: str  # what a failure is about: the key of the job file


class Jvm:
    """A running JVM."""

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

    def finish(self, on_report: Callable[[str], None], on_line: Callable[[str], None]) -> None:
        """Wait for the end: `on_report` gets each line for us, `on_line` all others. Raises JavaFailed where the JVM does not end well."""
        sender = threading.Thread(
            target=self._send_request, name="java", daemon=True
        )  # the JVM reads once it has begun
        sender.start()
        assert self._process.stderr is not None
        try:
            with self._process.stderr as lines:
                for line in lines:
                    self._sort_line(line, on_report, on_line)
            status = self._process.wait()
        finally:
            self._process.kill()
            self._process.wait()
            children.forget(self._process.pid)
            sender.join()
            os.close(self._control)
        if status:
            how = f"it ended with status {status}" if status > 0 else f"it was killed by signal {-status}"
            raise JavaFailed(
                self.failure or f"Java failed: {self._last or how}"[:500], place=self._call.about,
                mend="see what Java said: tm logs", anchor="hadoop-format",
            )  # fmt: skip

    def _send_request(self) -> None:
        rest = memoryview(self._call.request)
        with contextlib.suppress(BrokenPipeError):
            while rest:
                rest = rest[os.write(self._control, rest) :]

    def _sort_line(self, line: bytes, on_report: Callable[[str], None], on_line: Callable[[str], None]) -> None:
        text = line.rstrip(b"\n").decode(errors="replace")
        if not line.startswith(MARK):
            self._last = text or self._last
            on_line(text)
        elif text[1:].startswith("failed "):
            self.failure = text[8:].strip()[:500]
        else:
            on_report(text[1:])


def request(order: Mapping[str, str], conf: Mapping[str, str], splits: Iterable[bytes] = ()) -> bytes:
    """Return the bytes that go over the pipe, as `Formats.java` reads them."""
    payloads = [bytes(split) for split in splits]
    parts: list[bytes] = []
    for texts in (order, conf):
        parts.append(struct.pack(">i", len(texts)))
        parts += [_length_prefixed(text.encode()) for pair in texts.items() for text in pair]
    parts.append(struct.pack(">i", len(payloads)))
    return b"".join([*parts, *map(_length_prefixed, payloads)])


def _length_prefixed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def call(
    payload: bytes, about: str, *, environ: Mapping[str, str], cwd: str, heap: int, jars: Sequence[str] = (), flags: Sequence[str] = ()
) -> Call:  # fmt: skip
    """Return the call of this node's JVM for a request. `about`: the key of the job file. Raises JavaFailed, naming the node."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(_CARRIED)} | dict(environ)
    try:
        java = program("java", environment)
        hadoop = classpath(environment)
        command = [
            java, "-XX:+UseSerialGC", "-XX:-UsePerfData",
            f"-Dlog4j.configuration=file:{JAVA / 'log4j.properties'}", *flags,
            *(flag for name in ("HADOOP_OPTS", "HADOOP_CLIENT_OPTS") for flag in shlex.split(environment.get(name, ""))),
            f"-Xmx{max(heap >> 20, 16)}m",  # the last one counts, and is what the container has room for
            "-cp", ":".join([classes_jar(environment, hadoop), *jars, *hadoop]), MAIN,
        ]  # fmt: skip
    except JavaFailed as error:
        error.place = about
        raise
    return Call(command, payload, environment, cwd, about)


def program(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of java or javac. Raises JavaFailed where there is none."""
    home = environ.get("JAVA_HOME", "")
    path = shutil.which(f"{home}/bin/{name}") if home else None
    path = path or shutil.which(name, path=environ.get("PATH"))
    if path is None:
        looked = f"{home}/bin and PATH" if home else "PATH, and JAVA_HOME is not set"
        raise JavaFailed(
            f"no {name} on {socket.gethostname()}: looked in {looked}",
            mend="Hadoop's formats need Java there: install it, or set JAVA_HOME in roles.ROLE.env", anchor="no-java",
        )  # fmt: skip
    return path


def classpath(environ: Mapping[str, str]) -> list[str]:
    """Return the classpath of Hadoop's classes and its configuration. Raises JavaFailed where there is none."""
    conf = environ.get("HADOOP_CONF_DIR", "")
    entries = [conf] if conf else []
    entries += [entry for entry in environ.get("HADOOP_CLASSPATH", "").split(":") if entry]
    if not _is_complete(entries):
        entries += _tool_classpath(environ) or _configured_classpath(conf, environ)
    if not _is_complete(entries):
        raise JavaFailed(
            f"no Hadoop classes on {socket.gethostname()}: looked at HADOOP_CLASSPATH, HADOOP_HOME, hadoop on PATH, and "
            f"yarn.application.classpath in HADOOP_CONF_DIR {conf or '(not set)'}",
            mend="set HADOOP_CLASSPATH or HADOOP_HOME in roles.ROLE.env", anchor="no-hadoop-classes",
        )  # fmt: skip
    return list(dict.fromkeys(entries))


def _tool_classpath(environ: Mapping[str, str]) -> list[str]:
    """Return the entries that `hadoop classpath` prints; none where there is no such tool."""
    homes = [environ[name] for name in ("HADOOP_HOME", "HADOOP_COMMON_HOME") if environ.get(name)]
    tools = [shutil.which(f"{home}/bin/hadoop") for home in homes] + [shutil.which("hadoop", path=environ.get("PATH"))]
    for tool in filter(None, tools):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            answer = children.run([tool, "classpath"], env=environ, timeout=60)
            if not answer.returncode and (lines := answer.stdout.strip().splitlines()):
                return [entry for entry in lines[-1].split(":") if entry]
    return []


def _configured_classpath(conf: str, environ: Mapping[str, str]) -> list[str]:
    """Return the classpath that the cluster's configuration gives to applications."""
    entries: list[str] = []
    for file, (key, usual) in _CLASSPATHS.items():
        for entry in (_property(Path(conf, file), key) or usual).replace("{{", "${").replace("}}", "}").split(","):
            entry = entry.strip()
            for name in sorted(environ, key=len, reverse=True):
                entry = entry.replace(f"${{{name}}}", environ[name]).replace(f"${name}", environ[name])
            if entry and "$" not in entry:
                entries.append(entry)
    return entries


def _property(path: Path, key: str) -> str:
    """Return the value of a key in one of Hadoop's files, whose other values may be wrong; "" where there is none."""
    try:
        return next((setting.value for setting in sitefile.read(path) if setting.name == key), "")
    except ConfError:
        return ""


def _is_complete(entries: Iterable[str]) -> bool:
    names: set[str] = set()
    for entry in entries:
        if entry.endswith("*"):
            with contextlib.suppress(OSError):
                names.update(os.listdir(entry[:-1] or "."))
        else:
            names.add(os.path.basename(entry))
    return all(any(name.startswith(needed) for name in names) for needed in _NEEDED)


def classes_jar(environ: Mapping[str, str], hadoop: Sequence[str]) -> str:
    """Return the jar of our classes: the package's own, else one compiled here and kept for the next job. Raises JavaFailed."""
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
    jar = place / f"formats-{digest}.jar"
    if not jar.exists():
        build(jar, program("javac", environ), hadoop)
    return str(jar)


def build(jar: Path, javac: str, hadoop: Sequence[str]) -> None:
    """Compile our classes into `jar`, which appears whole. Raises JavaFailed."""
    sources = sorted(str(source) for source in JAVA.glob("trainmaster/*.java"))
    with tempfile.TemporaryDirectory(prefix=".formats-", dir=jar.parent) as folder:
        command = [javac, "--release", RELEASE, "-nowarn", "-Xlint:none", "-cp", ":".join(hadoop), "-d", folder]
        done = children.run([*command, *sources])
        if done.returncode:
            problem = next((line for line in done.stderr.splitlines() if "error" in line), f"status {done.returncode}")
            raise JavaFailed(
                f"the classes that read Hadoop's formats cannot be compiled on {socket.gethostname()}: {problem}",
                mend="make java, where there is a JDK >= 9, puts them into this package", anchor="hadoop-format",
            )  # fmt: skip
        draft = Path(folder, "formats.jar")
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(folder).rglob("*.class")):
                entry = zipfile.ZipInfo(str(path.relative_to(folder)))  # without a time: the same classes, the same jar
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        os.replace(draft, jar)
