"""Storages that are not of this machine, one after the other: S3 and HDFS, both real.

from elsewhere import elsewhere, ...  # fixtures; `elsewhere` is the URL of a place of the test's own
"""

from __future__ import annotations

import uuid

import pytest

HDFS = pytest.param("hdfs", marks=pytest.mark.xdist_group("hadoop"))


@pytest.fixture(params=["s3", HDFS])
def elsewhere(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def hdfs(on_hadoop: object) -> str:
    """The URL of a folder of the test's own on HDFS, which is not there yet; HADOOP_CONF_DIR says where HDFS is."""
    return f"hdfs:///tmp/tests-{uuid.uuid4().hex[:12]}"
