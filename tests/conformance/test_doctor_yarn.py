"""What `tm doctor` says of a real cluster."""

from __future__ import annotations

import getpass

import pytest

from trainmaster.client.jobs import doctor
from trainmaster.clusters.hadoop import Cluster
from trainmaster.hadoop.conf import default_fs, load
from trainmaster.log.dfs import open_dfs

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]


def examined() -> dict[str, doctor.Finding]:
    return {found.check: found for found in doctor.examined()}


def test_doctor_sees_the_cluster_and_whether_jobs_have_a_place_there(
    home: object, on_hadoop: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, us = default_fs(load(on_hadoop.conf_dir)), getpass.getuser()
    found = examined()
    assert doctor.BAD not in [one.state for one in found.values()]
    assert f"({on_hadoop.conf_dir}), 2 nodes" in found["yarn"].text
    assert "raised to 4 for long jobs" in found["yarn"].mend
    assert found["home on HDFS"].state == doctor.GOOD
    assert found["home on HDFS"].text.startswith(f"{fs}/user/{us}")

    dfs, _ = open_dfs(fs)
    dfs.call(lambda client: client.mkdirs("/user/stranger", 0o755, False))
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    try:
        told = examined()["home on HDFS"]
    finally:
        dfs.call(lambda client: client.delete("/user/stranger", True))
    assert (told.state, told.text) == (doctor.WARNING, f"{fs}/user/stranger is {us}'s; stranger may not write there")
    assert told.mend == "an administrator gives it: hdfs dfs -chown stranger /user/stranger"
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody-yet")
    told = examined()["home on HDFS"]
    assert told.text == f"{fs}/user/nobody-yet does not exist, and nobody-yet may not make it"
    assert told.mend.endswith("hdfs dfs -mkdir -p /user/nobody-yet; hdfs dfs -chown nobody-yet /user/nobody-yet")
