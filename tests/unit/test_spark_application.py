"""An application of a job's own, without Spark: its properties, its master, and the words of what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.reading import job_from
from trainmaster.engines.spark.application import masters, properties
from trainmaster.engines.spark.application.driver import reason_of
from trainmaster.engines.spark.application.launch import environment, reason_in
from trainmaster.engines.spark.application.on_yarn import words_of
from trainmaster.engines.spark.client import SparkClient, Store, check_storage
from trainmaster.engines.spark.home import Home
from trainmaster.engines.spark.settings import Settings, settings


def job(**keys: Any) -> Any:
    large = {"cores": 3.5, "memory": "2GiB", "overhead": "100MiB", "gpus": 2}
    roles = {
        "worker": {"command": "true", "replicas": {"min": 2, "max": 4}, "resources": large},
        "ps": {"command": "true", "resources": {"cores": 1, "memory": "64MiB"}},
    }
    return job_from({"name": "t", "roles": roles, **keys})


@pytest.mark.parametrize(
    ("master", "memory"),
    [
        ("spark://head:7077", {"spark.executor.memory": "2660m", "spark.cores.max": "20"}),
        (
            "yarn",
            {
                "spark.executor.memory": "512m",
                "spark.executor.memoryOverhead": "2532m",
                "spark.executor.maxNumFailures": "2147483647",
            },
        ),
    ],
)
def test_there_is_an_executor_for_each_container_of_the_size_of_the_largest(
    master: str, memory: dict[str, str]
) -> None:
    found = properties.derived(job(), master)
    others = {
        "spark.app.name": "t", "spark.ui.showConsoleProgress": "false", "spark.executor.cores": "4", "spark.executor.instances": "5",
        "spark.executor.resource.gpu.amount": "2",
    }  # fmt: skip
    assert found == others | memory


def test_an_application_on_yarn_chooses_its_nodes() -> None:
    roles = {
        name: {"command": "true", "nodes": {"labels": {"label": "fast"}, "exclude": ["b", "a"]}}
        for name in ("worker", "ps")
    }
    found = properties.derived(job_from({"name": "t", "roles": roles}), "yarn")
    assert found["spark.yarn.executor.nodeLabelExpression"] == "fast"
    assert found["spark.yarn.exclude.nodes"] == "a,b"
    roles["ps"]["nodes"] = {"exclude": ["a"]}
    with pytest.raises(BadInput, match="ps and worker choose different nodes"):
        properties.derived(job_from({"name": "t", "roles": roles}), "yarn")
    roles["worker"] = roles["ps"] = {"command": "true", "nodes": {"labels": {"zone": "x"}}}
    with pytest.raises(BadInput, match="nodes of YARN have no zone"):
        properties.derived(job_from({"name": "t", "roles": roles}), "yarn")


def test_the_jobs_conf_comes_before_ours_and_that_before_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master = spark://a:1\nspark.executor.cores 9\nspark.x 1\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    home = Home(tmp_path, "3.5.9")
    options = settings({"conf": {"spark.executor.instances": 7, "spark.flag": True, "spark.path": " c:\\d"}})
    text = properties.written(options, job(), "spark://b:2", home, {"spark.last": "1"})
    lines = [line.split(None, 1) for line in text.replace(" = ", " ").splitlines() if line]
    last = dict(lines)
    assert properties.default_master(properties.defaults(home)) == "spark://a:1"
    assert (last["spark.master"], last["spark.executor.cores"], last["spark.executor.instances"]) == (
        "spark://b:2",
        "4",
        "7",
    )
    assert (last["spark.x"], last["spark.flag"], last["spark.path"], last["spark.last"]) == (
        "1",
        "true",
        "\\ c:\\\\d",
        "1",
    )


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"deploy": "there"}, "'there' is not a deploy mode"),
        ({"conf": {"x": "1"}}, "engines.spark.conf.x: it is not a property of Spark"),
        ({"conf": {"spark.master": "yarn"}}, "engines.spark.conf.spark.master: it has a key of its own"),
        ({"conf": {"spark.x": ["1"]}}, "must be a string"),
        ({"application": "app-1", "master": "yarn"}, "the application app-1 runs already"),
    ],
)
def test_settings_that_cannot_be_are_refused(entries: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        settings(entries)


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[3,2]", 3), ("yarn", None), ("spark://a:1", None), ("local[x]", None)],
)
def test_a_local_master_has_cores(master: str, cores: int | None) -> None:
    assert masters.local_cores(master) == cores


def test_a_job_that_no_local_master_can_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster.client.submit.requests import requests

    for name in ("spark_submit", "java"):
        monkeypatch.setattr(Home, name, lambda self: "")
    for path in ("bin/spark-class", "jars/spark-core_2.12-3.5.9.jar"):
        (tmp_path / path).parent.mkdir()
        (tmp_path / path).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    described = job(engines={"spark": {"master": "local[2]"}})
    with pytest.raises(BadInput, match=r"worker needs 3.5 cores, and no executor has more than 2"):
        SparkClient().check(described, requests(described))


def test_data_of_this_machine_goes_through_the_storage_and_on_one_machine_needs_none() -> None:
    assert Store(job(storage="hdfs://h/a/")).inputs == "hdfs://h/a/inputs"
    assert Store(job(), is_local=True).outputs.startswith("file:///")
    with pytest.raises(BadInput, match="need a storage that the executors reach"):
        _ = Store(job()).inputs


@pytest.mark.parametrize("section", [{"conf": {"spark.x": "1"}}, {"deploy": "cluster"}])
def test_an_application_that_is_asked_for_needs_a_master(
    section: dict[str, Any], home: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with pytest.raises(BadInput, match=r"engines.spark.master: it is missing"):
        SparkClient().own_master(job(engines={"spark": section}))


def test_a_driver_on_a_node_needs_a_storage() -> None:
    section = {"spark": {"master": "yarn", "deploy": "cluster"}}
    check_storage(job(engines=section, storage="hdfs://h/a"))
    with pytest.raises(BadInput, match="the job has no storage that both it and we reach"):
        check_storage(job(engines=section))


def test_the_pythons_are_sparks_own_choice_where_the_user_made_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    home = Home(tmp_path, "3.5.9")
    assert environment(home, "yarn", Settings())["PYSPARK_DRIVER_PYTHON"] == home.python
    assert "PYSPARK_PYTHON" not in environment(home, "yarn", Settings())
    assert environment(home, "local[2]", Settings())["PYSPARK_PYTHON"] == home.python
    assert "PYSPARK_DRIVER_PYTHON" not in environment(home, "yarn", Settings(conf={"spark.pyspark.python": "p"}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("INFO x\nException in thread \"main\" a.b.SparkException: no room\n\tat x\nCaused by: y\n", "a.b.SparkException: no room"),
        ("Invalid maximum heap size: -Xmx1x\nError: Could not create the Java Virtual Machine.\n", "Invalid maximum heap size: -Xmx1x"),
        ("error: the driver's Python is 3.9\n", "the driver's Python is 3.9"),
        ("", "its log is empty"),
    ],
)  # fmt: skip
def test_the_reason_is_found_in_the_drivers_log(text: str, why: str, tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    log.write_text(text)
    assert reason_in(log) == why


def test_the_reason_is_found_in_sparks_error() -> None:
    text = 'Job aborted: Lost task (host executor 1): java.io.IOException: Cannot run program "/x": error=2\n\tat a\nCaused by: b'
    assert reason_of(text) == 'Cannot run program "/x": error=2'
    assert reason_of("no mark\nmore") == "no mark"


def test_the_end_of_an_application_on_yarn_is_one_line() -> None:
    diagnostics = """Application application_1_0002 failed 1 times (global limit =2; local limit is =1) due to AM Container for
        appattempt_1_0002_000001 exited with  exitCode: 137
Failing this attempt.Diagnostics: [2026-11-27 03:26:30.161]Container killed on request. Exit code is 137
[2026-11-27 03:26:30.162]Killed by external signal
For more detailed output, check the application tracking page: http://h/cluster/app/application_1_0002 Then click on links to logs."""
    assert words_of(diagnostics) == (
        "Application application_1_0002 failed 1 times (global limit =2; local limit is =1) due to AM Container for "
        "appattempt_1_0002_000001 exited with exitCode: 137 Container killed on request. Exit code is 137 Killed by external signal"
    )
