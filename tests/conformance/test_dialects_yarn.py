"""The quick-starts of XLearning and Submarine on a real YARN, with data on HDFS, as their users know them: no flag says an engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conformance.engines import TM
from conformance.test_dialects import DEMO
from waiting import until

from trainmaster.data.store.stores import store_for

pytestmark = pytest.mark.xdist_group("hadoop")
LIMIT = 240.0  # s for a job; reached by a failure alone


def tm(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TM, *words], cwd=cwd, capture_output=True, text=True, timeout=LIMIT, check=False)


@pytest.mark.full
def test_the_quick_start_of_xlearning_on_yarn(on_hadoop, tmp_path: Path) -> None:
    """2 workers and 1 ps, input and output on the default file system."""
    data = store_for("hdfs:///tmp/data/tensorflow")
    for number in range(4):
        data.put(f"part-{number}.txt", b"x\n")
    (tmp_path / "demo.py").write_text(DEMO)
    words = (
        "--app-type tensorflow --app-name tf-demo --input /tmp/data/tensorflow#data --output /tmp/tensorflow_model#model "
        "--files demo.py --worker-memory 128M --worker-num 2 --worker-cores 1 --ps-memory 128M --ps-num 1 --ps-cores 1 --queue default"
    )
    command = [sys.executable, "demo.py", "--data_path=./data"]
    done = tm("submit", "--xlearning", *words.split(), *command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    model = store_for("hdfs:///tmp/tensorflow_model")
    made = [json.loads(model.get(f"worker-{index}/result.json") or b"") for index in range(2)]
    assert [(one["index"], one["got"], one["workers"]) for one in made] == [(0, "weights", 2), (1, "weights", 2)]
    assert sorted(made[0]["read"] + made[1]["read"]) == [f"part-{number}.txt" for number in range(4)]
    assert model.exists("_SUCCESS")
    again = tm("submit", "--xlearning", *words.split(), *command, cwd=tmp_path)
    assert again.returncode == 1, "the output exists"
    assert "the output model exists already" in again.stderr
    elsewhere = tm("submit", "--xlearning", "--queue", "nowhere", "true", cwd=tmp_path)
    assert elsewhere.returncode == 1, elsewhere.stderr


SAVES_ONCE = """
import json, os, sys
if os.environ["TF_ROLE"] == "worker" and os.environ["TF_INDEX"] == "0":
    with open("model/seen.json", "w") as file:
        json.dump({"data": sorted(os.listdir("data")), "words": sorted(os.listdir("words"))}, file)
"""


@pytest.mark.full
def test_one_worker_saves_what_two_remote_paths_gave_on_yarn(on_hadoop, tmp_path: Path) -> None:
    """`A,B#data`, a folder by --cacheFile, TensorBoard by default, and an output that only worker 0 writes."""
    for path in ("a/part-0", "b/part-0", "b/part-1", "words/deep/w"):
        store_for("hdfs:///tmp/several").put(path, b"x\n")
    (tmp_path / "demo.py").write_text(SAVES_ONCE)
    words = (
        "--app-type tensorflow --app-name saves-once --input /tmp/several/a,/tmp/several/b#data --cacheFile /tmp/several/words#words "
        "--output /tmp/saves_once#model --files demo.py --worker-memory 128M --worker-num 1"
    )
    call = ("submit", "--xlearning", *words.split(), "--launch-cmd", f"{sys.executable} demo.py")
    shown = tm(*call[:2], "--dry-run", *call[2:], cwd=tmp_path)
    assert "TensorBoard: {role: worker" in shown.stdout, "a link while the job runs"
    done = tm(*call, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    model = store_for("hdfs:///tmp/saves_once")
    seen = json.loads(model.get("worker-0/seen.json") or b"")
    assert seen == {"data": ["2-part-0", "part-0", "part-1"], "words": ["deep"]}


@pytest.mark.full
def test_an_outputformat_writes_records_on_yarn(on_hadoop, tmp_path: Path) -> None:
    """Lines of stdout become records of a SequenceFile, which the matching InputFormat reads again."""
    store_for("hdfs:///tmp/lines").put("part-0", b"one\ntwo\n")
    file_format = "org.apache.hadoop.mapred.SequenceFile"
    streams = "--input-strategy STREAM --output-strategy STREAM --worker-memory 256M"
    words = f"--input /tmp/lines#in --output /tmp/records#out --outputformat {file_format}OutputFormat {streams}"
    done = tm("submit", "--xlearning", *words.split(), "cat", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = [file.path for file in store_for("hdfs:///tmp/records").files("worker-0")]
    assert (store_for("hdfs:///tmp/records").get(made) or b"").startswith(b"SEQ")
    words = f"--input /tmp/records/worker-0#in --output /tmp/again#out --inputformat {file_format}InputFormat {streams}"
    done = tm("submit", "--xlearning", *words.split(), "cat", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [made] = [file.path for file in store_for("hdfs:///tmp/again").files("worker-0")]
    assert store_for("hdfs:///tmp/again").get(made) == b"one\ntwo\n"


@pytest.mark.full
def test_the_quick_start_of_submarine_on_yarn(on_hadoop, tmp_path: Path) -> None:
    """A master, a worker and a ps, with a page that is linked to; shown and killed by name."""
    gate = "while true; do sleep 0.2; done"
    page = f"{sys.executable} -m http.server $TRAINMASTER_PORT_P7170"
    done = tm(
        *("submit", "--submarine", "job", "run", "--name", "tf-job-001", "--input_path", "hdfs://default/dataset"),
        *("--num_workers", "2", "--worker_resources", "memory=64M,vcores=1", "--worker_launch_cmd"),
        f'echo "$TF_CONFIG"; echo %input_path%; if [ $TRAINMASTER_ROLE = master ]; then {page}; fi; {gate}',
        *("--num_ps", "1", "--ps_resources", "memory=64M,vcores=1", "--ps_launch_cmd", gate, "--queue", "default"),
        *("--quicklink", "Page=http://master-0:7170"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    try:
        shown = ("submit", "--submarine", "job", "show", "--name", "tf-job-001")
        until(lambda: re.search(r"^Page: http://\S+:7170/$", tm(*shown, cwd=tmp_path).stdout, re.MULTILINE), LIMIT)
        lines = until(lambda: tm("logs", job, "worker:0", cwd=tmp_path).stdout.splitlines(), LIMIT)
        config = json.loads(lines[0].removeprefix("worker:0 "))
        assert {role: len(members) for role, members in config["cluster"].items()} == {
            "master": 1,
            "worker": 1,
            "ps": 1,
        }
        assert (config["task"], config["environment"]) == ({"type": "worker", "index": 0}, "cloud")
    finally:
        killed = tm("submit", "--submarine", "job", "kill", "--name", "tf-job-001", cwd=tmp_path)
    assert killed.stdout.strip() == f"{job} killed", killed.stderr
