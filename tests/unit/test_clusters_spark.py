"""What of a Spark cluster on this machine needs no Spark: settings, the Spark that is found, configuration, what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.clusters import spark
from trainmaster.clusters.spark import Cluster, Home, Settings
from trainmaster.clusters.spark.cluster import OFFSETS, Place
from trainmaster.core.errors import BadInput, EngineFailed, NotFound


def spark_in(folder: Path, version: str = "3.5.9") -> Path:
    """Make a folder that looks like a Spark."""
    for path in ("bin/spark-class", f"jars/spark-core_2.12-{version}.jar"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return folder


def cluster_in(folder: Path, settings: Settings) -> Cluster:
    ports = {name: 20000 + offset for name, offset in OFFSETS.items()}
    return Cluster("c", Place(folder, ports), settings, Home(folder, "4.3.0"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nodes": 0}, "--nodes is 0, from 1 to"),
        ({"memory": 100}, "--memory (MiB) is 100, from 512"),
        ({"cores": 0}, "--cores is 0"),
        ({"node_expiry": 0.2}, "--node-expiry (s) is 0.2, from 1"),
        ({"resources": {"a/b": 1}}, "'a/b' cannot be the name of a resource"),
        ({"properties": {"yarn.x": "1"}}, "yarn.x is not a property of Spark"),
    ],
)
def test_settings_that_no_cluster_can_have_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        Settings(**values)  # type: ignore[arg-type]
    assert words in str(refused.value)


def test_a_cluster_survives_its_record(tmp_path: Path) -> None:
    cluster = cluster_in(tmp_path, Settings(nodes=3, resources={"gpu": 2}, properties={"spark.ui.enabled": "false"}))
    cluster.save()
    copy = Cluster.read(tmp_path)
    assert copy is not None
    assert (copy.settings, copy.home, copy.place, copy.state) == (
        cluster.settings,
        cluster.home,
        cluster.place,
        "broken",
    )
    (tmp_path / "cluster.json").write_text('{"kind": "spark"}')
    with pytest.raises(EngineFailed, match="cannot be read"):
        Cluster.read(tmp_path)


def test_the_configuration_has_ours_the_users_and_devices(tmp_path: Path) -> None:
    cluster = cluster_in(
        tmp_path, Settings(resources={"gpu": 2}, properties={"spark.worker.timeout": "60", "spark.x": "a b"})
    )
    (tmp_path / "recovery").mkdir()
    cluster.write_conf()
    lines = (cluster.conf_dir / "spark-defaults.conf").read_text().splitlines()
    properties = dict(line.split(" ", 1) for line in lines)
    assert properties["spark.master"] == "spark://localhost:20007" == cluster.url
    assert (properties["spark.worker.timeout"], properties["spark.x"]) == ("60", "a b")
    assert not (tmp_path / "recovery").exists()
    script = properties["spark.worker.resource.gpu.discoveryScript"]
    assert (
        subprocess.run([script], capture_output=True, text=True, check=True).stdout
        == '{"name": "gpu", "addresses": ["0", "1"]}\n'
    )


def test_spark_is_that_of_spark_home_else_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_in(tmp_path / "a", "4.1.0")))
    assert spark.find_home() == Home(tmp_path / "a", "4.1.0")
    assert spark.find_home().python == sys.executable
    monkeypatch.delenv("SPARK_HOME")
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    (spark_in(packages / "pyspark") / "__init__.py").touch()
    (tmp_path / "venv" / "bin").mkdir()
    (tmp_path / "venv" / "bin" / "python").touch()
    monkeypatch.syspath_prepend(packages)
    home = spark.find_home()
    assert (home.folder, home.version, home.python) == (
        packages / "pyspark",
        "3.5.9",
        str(tmp_path / "venv" / "bin" / "python"),
    )


@pytest.mark.parametrize(("version", "words"), [("", "is not a Spark"), ("2.4.8", "3.5 and 4 are the versions")])
def test_what_is_no_spark_of_ours_is_refused(
    version: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_in(tmp_path, version) if version else tmp_path))
    with pytest.raises(BadInput, match=words) as refused:
        spark.find_home()
    assert refused.value.anchor == "no-spark"


def test_a_machine_without_spark_is_reported_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    with pytest.raises(BadInput, match="and the package pyspark is not installed") as refused:
        spark.find_home()
    assert "pip install '.[spark]'; or set SPARK_HOME" in refused.value.mend


def test_java_is_missing_or_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r"which Spark 3.5.9 needs"):
        Home(tmp_path, "3.5.9").java()
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    assert Home(tmp_path, "3.5.9").java() == str(java)
    with pytest.raises(BadInput, match=r"under which Spark 4.3.0 does not run") as refused:
        Home(tmp_path, "4.3.0").java()
    assert "17 to 21" in refused.value.mend


def test_there_is_no_cluster(home: object) -> None:
    with pytest.raises(NotFound):
        spark.find()
    assert not spark.down()
