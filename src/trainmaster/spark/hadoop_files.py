"""Files that Spark's tasks write to a Hadoop file system, with Spark's own classes and configuration.

A task's Python cannot call its executor's JVM. So where a URL is not of the host's own files (`file:`), the task starts the same Java with
the same class path, as `org.apache.hadoop.fs.FsShell -put -`, and writes to its stdin; that costs two seconds of a core for each file. The
driver's configuration of Hadoop comes with the task, in files that only its user reads; delegation tokens are those of the executor's start
(HADOOP_TOKEN_FILE_LOCATION).

An output is complete or absent: tasks write into `_temporary`, each attempt under a name of its own. The driver moves into place what the
attempts that count have written, then makes `_SUCCESS`.

`writing` runs in tasks, where nothing of ours is installed: it uses the standard library alone.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from trainmaster.core.errors import BadInput, StorageFailed
from trainmaster.host.java import commands_above

if TYPE_CHECKING:
    from pyspark import SparkContext


class OutputFolder:
    """A new directory, made by the driver. As a context, it removes the directory again where an error comes before the commit's end."""

    def __init__(self, context: SparkContext, url: str) -> None:
        """Raises BadInput where the directory exists, StorageFailed where it cannot be reached."""
        self._url, self._jvm = url, context._jvm
        hadoop = context._jsc.hadoopConfiguration()
        with self._java_errors():
            path = self._jvm.org.apache.hadoop.fs.Path(url)
            self._files = path.getFileSystem(hadoop)
            self._path = self._files.makeQualified(path)
            exists = self._files.exists(self._path)
        if exists:
            place, mend = f"saveAsTFRecords to {url}", "remove it, or name another"
            raise BadInput(f"Output directory {url} already exists", place=place, mend=mend)
        writer = self._jvm.java.io.StringWriter()
        hadoop.writeXml(writer)
        self.configuration: str = writer.toString()
        self.attempts: str = self._path.toString() + "/_temporary"

    def __enter__(self) -> None:
        with self._java_errors():
            self._files.mkdirs(self._within("_temporary"))

    @contextmanager
    def _java_errors(self) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            raise StorageFailed(f"{self._url} cannot be written: {error.java_exception.toString()}") from error

    def commit(self, attempts: Mapping[str, str]) -> None:
        """Move the file of each attempt to its name."""
        with self._java_errors():
            for name, attempt in attempts.items():
                source = self._within(f"_temporary/{attempt}")
                if not self._files.exists(source) or not self._files.rename(source, self._within(name)):
                    raise BadInput(
                        f"the driver cannot move {source.toString()}, which a task has written", place=str(self.attempts),
                        mend="write to storage that all hosts share and the driver may write",
                    )  # fmt: skip
            self._files.delete(self._within("_temporary"), True)
            self._files.create(self._within("_SUCCESS")).close()

    def __exit__(self, kind: object, *error: object) -> None:
        if kind:
            self._files.delete(self._path, True)

    def _within(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._path, name)


@contextmanager
def writing(url: str, configuration: str) -> Iterator[IO[bytes]]:
    """Open a new file of a Hadoop file system; `configuration` is Hadoop's, as XML. Raises OSError where it cannot be written."""
    if url.startswith("file:"):
        with open(url.removeprefix("file:"), "xb") as file:
            yield file
        return
    java, class_path = _java_of_executor()
    with tempfile.TemporaryDirectory() as settings, tempfile.TemporaryFile() as errors:
        for name in (
            "core-site.xml",
            "hdfs-site.xml",
        ):  # the shell demands both; a later one overrides defaults of an earlier one
            Path(settings, name).write_text(configuration)
        command = [
            java,
            "-Xmx256m",
            "-cp",
            f"{settings}:{class_path}",
            "org.apache.hadoop.fs.FsShell",
            "-put",
            "-",
            url,
        ]
        shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=errors, stderr=errors)
        try:
            assert shell.stdin
            with shell.stdin as file:
                yield file
        except BrokenPipeError:  # the shell's own words say why
            pass
        finally:
            status = shell.wait()
        if status:
            errors.seek(0)
            lines = [
                line for line in errors.read().decode(errors="replace").splitlines() if not line.startswith("\tat ")
            ]
            raise OSError(f"{url} cannot be written: {' '.join(lines[-3:]) or f'the status of FsShell is {status}'}")


def _java_of_executor() -> tuple[str, str]:
    """Return the Java program and the class path of the executor: the nearest ancestor that is a Java."""
    for arguments in commands_above():
        if os.path.basename(arguments[0]) == "java":
            flags = {"-cp", "-classpath", "--class-path"} & set(arguments)
            class_path = arguments[arguments.index(flags.pop()) + 1] if flags else os.environ.get("CLASSPATH", "")
            return arguments[0], class_path
    raise OSError("this process is not a task of a Spark executor: no Java is above it")
