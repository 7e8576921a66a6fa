"""Where Java and Hadoop's classes are found on a node, and what is said where they are not."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from trainmaster.data.formats import jvm
from trainmaster.data.formats.jvm import JavaFailed

JARS = ("hadoop-common-3.4.2.jar", "hadoop-mapreduce-client-core-3.4.2.jar")


def jars(folder: Path, *names: str) -> Path:
    """A folder with jars of these names: which of them are there is all that is looked at."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or JARS:
        (folder / name).touch()
    return folder


def site(folder: Path, name: str, key: str, value: str) -> Path:
    folder.mkdir(exist_ok=True)
    text = f"<configuration><property><name>{key}</name><value>{value}</value></property></configuration>"
    (folder / name).write_text(text)
    return folder


def hadoop(folder: Path, prints: str) -> Path:
    """A Hadoop home whose script `hadoop classpath` prints this."""
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "hadoop"
    script.write_text(f'#!/bin/sh\necho noise\n[ "$1" = classpath ] && echo "{prints}"\n')
    script.chmod(0o755)
    return folder


def test_the_submitters_classpath_is_enough_where_it_has_the_classes(tmp_path: Path) -> None:
    found = jars(tmp_path / "lib")
    home = hadoop(tmp_path / "home", "/elsewhere/*")
    environ = {"HADOOP_CLASSPATH": f"{found}/*", "HADOOP_CONF_DIR": "/etc/hadoop", "HADOOP_HOME": str(home)}
    assert jvm.classpath(environ) == ["/etc/hadoop", f"{found}/*"]


def test_else_hadoop_itself_is_asked_and_the_submitters_goes_before(tmp_path: Path) -> None:
    found, mine = jars(tmp_path / "lib"), jars(tmp_path / "mine", "mine.jar")
    home = hadoop(tmp_path / "home", f"/etc/conf:{found}/*")
    environ = {"HADOOP_CLASSPATH": f"{mine}/mine.jar", "PATH": f"{home}/bin:/bin"}
    assert jvm.classpath(environ) == [f"{mine}/mine.jar", "/etc/conf", f"{found}/*"]


def test_else_what_the_cluster_gives_to_applications(tmp_path: Path) -> None:
    """Variables are the node's, in each of the ways that they are written; an entry with one that is not set is none."""
    jars(tmp_path / "common", JARS[0])
    jars(tmp_path / "mapred/share/hadoop/mapreduce", JARS[1])
    value = "$HADOOP_CONF_DIR, ${HADOOP_COMMON_HOME}/*,{{HADOOP_COMMON_HOME}}/lib/*,$UNSET/*"
    conf = site(tmp_path / "conf", "yarn-site.xml", "yarn.application.classpath", value)
    common, mapred = tmp_path / "common", tmp_path / "mapred"
    environ = {"HADOOP_CONF_DIR": str(conf), "HADOOP_COMMON_HOME": str(common), "HADOOP_MAPRED_HOME": str(mapred)}
    assert jvm.classpath(environ) == [
        str(conf),
        f"{common}/*",
        f"{common}/lib/*",
        f"{mapred}/share/hadoop/mapreduce/*",  # Hadoop's own default, for mapred-site.xml says nothing
        f"{common}/share/hadoop/mapreduce/*",
    ]


def test_one_part_of_hadoop_is_not_enough(tmp_path: Path) -> None:
    found = jars(tmp_path / "lib", JARS[0])
    with pytest.raises(JavaFailed, match=r"no Hadoop classes on .*HADOOP_CLASSPATH") as failure:
        jvm.classpath({"HADOOP_CLASSPATH": f"{found}/*"})
    assert (failure.value.anchor, "HADOOP_HOME" in failure.value.mend) == ("no-hadoop-classes", True)
    client = jars(tmp_path / "client", "hadoop-client-api-3.4.2.jar")  # the shaded one has all
    assert jvm.classpath({"HADOOP_CLASSPATH": f"{client}/*"}) == [f"{client}/*"]


def test_java_is_javas_home_else_on_the_path(tmp_path: Path) -> None:
    for folder in ("home/bin", "path"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "java").touch(mode=0o755)
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert jvm.program("java", environ) == str(tmp_path / "home/bin/java")
    assert jvm.program("java", environ | {"JAVA_HOME": "/nowhere"}) == str(tmp_path / "path/java")
    with pytest.raises(JavaFailed, match=r"no javac on .*/nowhere/bin and PATH"):
        jvm.program("javac", environ | {"JAVA_HOME": "/nowhere"})


def test_what_goes_over_the_pipe() -> None:
    """Counted texts by name, settings by name, splits: as `Formats.java` reads it."""
    made = jvm.request({"act": "read"}, {"a.b": "ü"}, [b"\0split"])
    parts = [b"act", b"read", struct.pack(">i", 1), b"a.b", "ü".encode(), struct.pack(">i", 1), b"\0split"]
    counted = [
        part if len(part) == 4 and part.startswith(b"\0") else struct.pack(">i", len(part)) + part for part in parts
    ]
    assert made == struct.pack(">i", 1) + b"".join(counted)
