"""TensorFlowOnSpark's names that need no Spark: paths, and GPUs by an nvidia-smi that prints what a real one does."""

from __future__ import annotations

import getpass
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainmaster.spark import TFNode, gpu_info
from trainmaster.spark.nodes.gpus import VISIBLE, choose_gpus, index_on_host, single_node_env

USER = getpass.getuser()
UUIDS = [f"GPU-5b1c{number}" for number in range(4)]


@pytest.mark.parametrize(
    ("default", "path", "url"),
    [
        *(("hdfs://nn:8020", f"{scheme}host/a/b", f"{scheme}host/a/b") for scheme in TFNode.HADOOP_SCHEMES),
        ("hdfs://nn:8020", "/data/x", "hdfs://nn:8020/data/x"),
        ("viewfs://c", "/data/x", "viewfs://c/data/x"),
        ("file://", "/data/x", "file:///data/x"),
        ("hdfs://nn:8020", "model", f"hdfs://nn:8020/user/{USER}/model"),
        ("viewfs://c", "a/model", f"viewfs://c/user/{USER}/a/model"),
        ("file://", "model", "file:///srv/dir/model"),
        ("s3a://bucket", "model", "s3a://bucket/model"),
    ],
)
def test_paths_become_urls(default: str, path: str, url: str) -> None:
    assert TFNode.hdfs_path(SimpleNamespace(defaultFS=default, working_dir="/srv/dir"), path) == url


def test_all_schemes_of_tensorflowonspark_are_known() -> None:
    names = "adl file hdfs oss s3 s3a s3n swift viewfs wasb"
    assert " ".join(sorted(scheme.removesuffix("://") for scheme in TFNode.HADOOP_SCHEMES)) == names


def test_a_relative_path_of_an_unknown_file_system_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        TFNode.hdfs_path(SimpleNamespace(defaultFS="gs://b", working_dir="/w"), "model")
    assert "Unknown scheme gs://b with relative path: model" in caplog.text


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with four GPUs; the file that is returned has the UUIDs of those with processes, a line for each look."""
    busy = tmp_path / "busy"
    busy.touch()
    gpus = "\n".join(f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: {uuid})" for number, uuid in enumerate(UUIDS))
    program = tmp_path / "nvidia-smi"
    program.write_text(f"""#!/bin/sh
case "$*" in
    --list-gpus) echo '{gpus}';;
    *gpu_uuid,pid*) echo 'gpu_uuid, pid, process_name'; echo 'GPU-5b1c0, 77, python';;
    *) head -n 1 {busy} | tr ' ' '\\n'; sed -i 1d {busy};;
esac
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.setattr(gpu_info, "RETRY_PAUSE", 0.0)
    return busy


def test_free_gpus_are_those_without_a_process(host: Path) -> None:
    assert gpu_info.is_gpu_available()
    host.write_text(f"{UUIDS[0]} {UUIDS[2]} {UUIDS[2]}\n" * 3)
    assert gpu_info.get_gpus(2, 0) == "1,3"
    assert set(gpu_info.get_gpus(2, format=gpu_info.AS_LIST)) == {"1", "3"}
    assert gpu_info.get_gpus() in {"1", "3"}


def test_workers_of_a_host_get_gpus_by_their_index(host: Path) -> None:
    assert [gpu_info.get_gpus(1, worker) for worker in range(6)] == ["0", "1", "2", "3", "0", "1"]
    assert [gpu_info.get_gpus(2, worker, gpu_info.AS_LIST) for worker in range(3)] == [
        ["0", "1"],
        ["2", "3"],
        ["0", "1"],
    ]
    assert gpu_info.get_gpus(0, 1) == ""


def test_gpus_that_are_let_go_are_found_by_a_later_look(host: Path) -> None:
    host.write_text(f"{' '.join(UUIDS)}\n{' '.join(UUIDS)}\n{' '.join(UUIDS[1:])}\n")
    assert gpu_info.get_gpus() == "0"


def test_too_few_gpus_end_with_words_and_the_processes(host: Path) -> None:
    host.write_text(f"{' '.join(UUIDS[1:])}\n" * 3)
    with pytest.raises(
        RuntimeError, match=r"Unable to find 2 free GPU\(s\) of the 4 of this host:\n(.*\n)*GPU-5b1c0, 77, python"
    ):
        gpu_info.get_gpus(2)
    with pytest.raises(RuntimeError, match=r"Unable to find 5 free GPU"):
        gpu_info.get_gpus(5)
    with pytest.raises(ValueError, match="format is 'tuple': use AS_STRING or AS_LIST"):
        gpu_info.get_gpus(format="tuple")


def test_a_host_without_nvidia_smi_has_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not gpu_info.is_gpu_available()
    with pytest.raises(RuntimeError, match=r"Unable to find GPUs: .*nvidia-smi"):
        gpu_info.get_gpus()


@pytest.mark.parametrize(
    ("arguments", "of_spark", "gpus"),
    [
        (None, [], ["1"]),
        (SimpleNamespace(lr=0.1), [], ["1"]),
        (SimpleNamespace(num_gpus=2), [], ["2", "3"]),
        ({"num_gpus": 1}, [], ["1"]),
        (["--num_gpus", "2"], [], ["1"]),
        (SimpleNamespace(num_gpus=0), [], []),
        (None, ["5", "6"], ["5", "6"]),
        (SimpleNamespace(num_gpus=1), ["5", "6"], ["5"]),
        (SimpleNamespace(num_gpus=0), ["5", "6"], []),
    ],
)
def test_a_node_takes_the_gpus_that_its_arguments_ask_for(
    host: Path, arguments: object, of_spark: list[str], gpus: list[str]
) -> None:
    assert choose_gpus(arguments, of_spark, 1) == gpus


def test_a_node_without_the_gpus_that_its_arguments_ask_for_fails(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_EXECUTOR_POD_IP", "10.0.0.7")
    assert choose_gpus(None, [], 0) == [], "a pod may see GPUs of others"
    with pytest.raises(RuntimeError, match="num_gpus is 1, and this process can have 0 GPUs: none"):
        choose_gpus(SimpleNamespace(num_gpus=1), [], 0)
    monkeypatch.delenv("SPARK_EXECUTOR_POD_IP")
    with pytest.raises(RuntimeError, match=r"Unable to find 5 free GPU"):
        choose_gpus(SimpleNamespace(num_gpus=5), [], 0)
    with pytest.raises(RuntimeError, match="num_gpus is 3, and this process can have 2 GPUs: 5, 6"):
        choose_gpus(SimpleNamespace(num_gpus=3), ["5", "6"], 0)


def test_nodes_of_one_host_have_indices_of_their_own() -> None:
    cluster = {"ps": ["a:1"], "chief": ["b:1"], "worker": ["a:2", "b:2", "a:3"]}
    nodes = [("ps", 0), ("chief", 0), ("worker", 0), ("worker", 1), ("worker", 2), ("evaluator", 0)]
    assert [index_on_host(cluster, role, index) for role, index in nodes] == [0, 0, 1, 1, 2, -1]


def test_a_process_without_a_cluster_is_prepared(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "7")
    single_node_env(1, 2, ["a:1", "b:1", "a:2"])
    assert os.environ[VISIBLE] == "1"
    single_node_env(num_gpus=0)
    assert os.environ[VISIBLE] == ""
    hadoop = tmp_path / "bin" / "hadoop"
    hadoop.parent.mkdir()
    hadoop.write_text("#!/bin/sh\necho /opt/$1/$2.jar\n")
    hadoop.chmod(0o755)
    monkeypatch.setenv("HADOOP_PREFIX", str(tmp_path))
    monkeypatch.setenv("CLASSPATH", "/opt/x.jar")
    monkeypatch.setenv("TFOS_CLASSPATH_UPDATED", "")
    monkeypatch.delenv("TFOS_CLASSPATH_UPDATED")
    for _ in range(2):  # the second call adds nothing
        single_node_env()
    assert os.environ["CLASSPATH"] == "/opt/x.jar:/opt/classpath/--glob.jar"
