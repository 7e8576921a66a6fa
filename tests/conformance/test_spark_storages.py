"""Files on HDFS that feeders read past the JVM: a real HDFS, and Spark as a driver that is its own executor."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path

import pytest
from conformance.engines import python
from conformance.test_spark_feed import READS, values
from conformance.test_spark_frames import driven
from spark import VERSIONS

from trainmaster.clusters.hadoop import Cluster
from trainmaster.data.store.ranges import open_range_file
from trainmaster.data.store.stores import store_for

pytestmark = [pytest.mark.xdist_group("hadoop"), pytest.mark.full]


@pytest.mark.parametrize("version", VERSIONS)
def test_files_on_hdfs_are_read_past_the_jvm(version: str, on_hadoop: Cluster, tmp_path: Path) -> None:
    how = f"""
        import logging, os
        lines = []
        logging.getLogger("trainmaster.spark.feed").setLevel(logging.INFO)
        logging.getLogger("trainmaster.spark.feed").handle = lambda record: lines.append(record.getMessage())
        place = "hdfs:///tests/{version} \u00e9"
        table = session.range(0, 3000, 1, 3).selectExpr("id as value", "array(cast(id as float)) as list", "id % 2 as even")
        table.write.partitionBy("even").mode("overwrite").parquet(place)
        table = session.read.parquet(place)
        feed.put(table.where("value >= 10").select("value", "list"), rows=100)
        context.environment["HADOOP_CONF_DIR"] = ""  # of executors; they get the driver's settings then
        feed.put(table.where("value >= 2000").select("value"))
        context.environment["HADOOP_CONF_DIR"] = "/none"
        feed.put(table.where("value >= 2990").select("value"))
        feed.end()
        answer["ways"] = lines
    """
    role = {
        "command": python(READS.format(extra="pass")), "resources": {"cores": 0.05, "memory": "64MiB"},
        "feed": {"input": {"memory": "4MiB"}},
    }  # fmt: skip
    answer = driven(version, tmp_path, how, role)
    assert answer["state"] == "succeeded", answer
    assert answer["ok"]
    assert sorted(chain.from_iterable(values(answer))) == sorted(
        [*range(10, 3000), *range(2000, 3000), *range(2990, 3000)]
    )
    first, second, third = answer["ways"]
    assert "6 Parquet files are read with Arrow, past the JVM" in first
    assert "6 Parquet files are read with Arrow, past the JVM" in second
    assert "Spark makes batches of Arrow: executors cannot read the files with Arrow: BadInput" in third
    assert "/none" in third


def check_ranges(url: str) -> None:
    content = os.urandom(300_000)
    store_for(url).put("a b%/c é.bin", content)
    with open_range_file(f"{url}/a%20b%25/c%20%C3%A9.bin") as file:
        assert file.read(10) == content[:10]
        file.seek(-5, os.SEEK_END)
        assert file.read() == content[-5:]
        assert file.read(10) == b""
        file.seek(200_000)
        assert file.read(50_000) == content[200_000:250_000]
        assert file.tell() == 250_000
    with pytest.raises(FileNotFoundError):
        open_range_file(f"{url}/none")


def test_ranges_of_files_on_hdfs(on_hadoop: Cluster) -> None:
    check_ranges("hdfs:///tests/ranges")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_ranges_of_files_on_s3(s3: str, scheme: str) -> None:
    check_ranges(s3.replace("s3:", f"{scheme}:"))
