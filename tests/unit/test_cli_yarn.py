"""What `tm` says of a Hadoop cluster that is not there, not named, or named wrongly."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from trainmaster.client.jobs import doctor
from trainmaster.client.jobs.handles import resolve
from trainmaster.client.jobs.places import client_side
from trainmaster.core.errors import EngineFailed, NotFound
from trainmaster.hadoop import yarn
from trainmaster.hadoop.rpc import Retry

HADOOP = ("HADOOP_CONF_DIR", "HADOOP_HOME")


def tm(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in HADOOP}
    return subprocess.run(
        [sys.executable, "-m", "trainmaster.cli", *words],
        capture_output=True, text=True, check=False, env={**environ, "NO_COLOR": "1", **more},
    )  # fmt: skip


XLEARNING = "--xlearning --worker-num 2 --app-name dry --dry-run python demo.py"
SUBMARINE = (  # a chief and two workers
    "--submarine job run --name dry --dry-run --input_path /in --num_workers 3 "
    "--worker_resources memory=1G,vcores=1 --worker_launch_cmd true"
)


@pytest.mark.parametrize(("words", "status"), [(XLEARNING, 1), (SUBMARINE, 2)])
def test_a_translation_is_shown_without_a_cluster(home, words: str, status: int) -> None:
    done = tm("submit", *words.split())
    assert (done.returncode, done.stderr.count("error: ")) == (status, 1), done.stderr
    told = yaml.safe_load(done.stdout)
    assert (told["name"], told["roles"]["worker"]["replicas"]) == ("dry", 2)
    assert "HADOOP_CONF_DIR is not set" in done.stderr


def site(folder: Path, name: str, **properties: str) -> Path:
    rows = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items()]
    (folder / name).write_text("\n".join(["<configuration>", *rows, "</configuration>"]))
    return folder


def test_a_configuration_that_names_no_resource_manager_is_refused(home, tmp_path: Path) -> None:
    site(tmp_path, "core-site.xml", **{"fs.defaultFS": "hdfs://nowhere.invalid:1"})
    done = tm("cluster", "show", "--engine", "yarn", HADOOP_CONF_DIR=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert f"no ResourceManager is named in {tmp_path}" in done.stderr
    assert (
        "[hadoop-conf]\n  set yarn.resourcemanager.hostname in its yarn-site.xml, or export HADOOP_CONF" in done.stderr
    )


def test_a_line_that_is_not_xml_is_to_be_mended(home, tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text("<configuration>\n<property></configuration>")
    done = tm("cluster", "show", "--engine", "yarn", HADOOP_CONF_DIR=str(tmp_path))
    assert done.returncode == 2, done.stderr
    assert f"{tmp_path}/core-site.xml:2: not XML: mismatched tag  [hadoop-conf]\n  mend that line\n" in done.stderr


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a ResourceManager that is down, of which the configuration tells. It is tried but once."""
    monkeypatch.setattr(yarn, "Retry", partial(Retry, tries=1))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and listens not
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        site(tmp_path, "yarn-site.xml", **{"yarn.resourcemanager.address": address})
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        yield address


def test_a_resource_manager_that_is_down_is_named_with_the_key_and_the_file(home, nobody: str, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed) as error:
        client_side("yarn").free()
    place = f"yarn.resourcemanager.address of {tmp_path}/yarn-site.xml:2"
    assert error.value.message == f"the ResourceManager at {nobody} ({place}) refuses the connection: is it running?"
    assert (error.value.status, error.value.anchor) == (3, "yarn")


def test_a_job_that_may_be_on_a_cluster_that_is_down_is_not_told_to_be_none(home, nobody: str) -> None:
    with pytest.raises(NotFound) as error:
        resolve("typo")
    assert error.value.message == "there is no job typo"
    assert error.value.place.startswith(f"the cluster could not be asked: the ResourceManager at {nobody} ")
    with pytest.raises(EngineFailed):
        resolve("application_1_0001")  # is nowhere else


def examined() -> dict[str, doctor.Finding]:
    return {found.check: found for found in doctor.examined()}


def test_doctor_takes_a_cluster_that_is_down_for_no_hindrance_to_jobs_here(home, nobody: str) -> None:
    found = examined()
    assert doctor.BAD not in [one.state for one in found.values()]
    told = found["yarn"]
    assert (told.state, told.mend) == (doctor.WARNING, "check that it runs, and that it is the one that you mean")
    assert told.text.startswith(f"the ResourceManager at {nobody} (yarn.resourcemanager.address of ")
    assert found["ticket"].text == "the cluster asks for none"
    assert found["home on HDFS"].text.startswith("fs.defaultFS is file:///, and jobs on YARN")


def test_doctor_looks_where_commands_do(home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HADOOP:
        monkeypatch.delenv(name, raising=False)
    assert "is set; they are needed for --engine yarn alone" in examined()["yarn"].text
    monkeypatch.setenv("HADOOP_HOME", str(tmp_path))
    folder = tmp_path / "etc/hadoop"
    assert f"{folder}, from HADOOP_HOME, cannot be read" in examined()["yarn"].text
    folder.mkdir(parents=True)
    (folder / "core-site.xml").write_text("<configuration>\n<property></configuration>")
    told = examined()["yarn"]
    assert (told.state, told.mend) == (doctor.WARNING, "mend that line")
