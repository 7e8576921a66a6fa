"""The network of one machine is cut for 1, 10 and 60 s: nothing closes, nothing answers. The machines are network namespaces.

Within the grace nobody notices. Beyond it the agent, which is behind the cut, ends its program by itself, and its task begins again
elsewhere. Whatever happened, each record counts exactly once, and a program noted it before.
"""

from __future__ import annotations

import json

import pytest
from conformance.engines import Submitted, python, role
from conformance.netns_engine import Netns
from waiting import until

from trainmaster.host.processes import start_time

pytestmark = pytest.mark.full

FILES, LINES = 30, 20
LIMIT = 180.0  # s for what follows a cut; reached by a failure alone
READ = python("""
    import os, time
    from trainmaster import runtime
    print("pid", os.getpid(), flush=True)
    for shard in runtime.shards("train", batch=2).shards():
        records = list(shard.records())
        time.sleep(0.1)
        name = f"{os.environ['NOTES']}/{os.environ['TRAINMASTER_INDEX']}-{os.environ['TRAINMASTER_ATTEMPT']}-{time.monotonic_ns()}"
        with open(name + ".part", "w") as file:
            file.write("".join(record + chr(10) for record in records))
        os.rename(name + ".part", name)
    while not os.path.exists(os.environ["GO"]):
        time.sleep(0.05)
""")


def reading(netns: Netns, grace: str) -> Submitted:
    """Submit two tasks that note what they read, and wait until both run."""
    notes = netns.folder / "notes"
    notes.mkdir()
    for number in range(FILES):
        netns.write(f"data/{number:03}.txt", "".join(f"{number} {line}\n" for line in range(LINES)))
    one = role(
        READ, 2, restart={"scope": "task", "limit": 0}, env={"NOTES": str(notes), "GO": str(netns.folder / "go")},
        stop={"grace": "1s"},
    )  # fmt: skip
    job = netns.submit(
        {"worker": one}, inputs={"train": {"url": netns.place("data"), "as": "shards"}}, timeouts={"grace": grace}
    )
    for task in ("worker:0", "worker:1"):
        job.until_line("pid", task)
    return job


@pytest.mark.parametrize(("seconds", "grace", "attempt"), [(1.0, "30s", 1), (10.0, "30s", 1), (60.0, "10s", 2)])
def test_the_network_of_a_machine_is_cut(netns: Netns, seconds: float, grace: str, attempt: int) -> None:
    job = reading(netns, grace)
    task = job.task("worker:0")
    pid = netns.process(job, 1, "worker:0")
    netns.cut(task["node"], seconds)
    if attempt == 2:
        until(
            lambda: start_time(pid) is None,
            LIMIT,
            what="the end of the program behind the cut, which outlives no grace",
        )
        job.until_status("another attempt", lambda status: status["tasks"][0]["attempt"] == 2, LIMIT)
    netns.write("go", "")
    status = job.succeeded(LIMIT)
    assert [task["attempt"] for task in status["tasks"]] == [attempt, 1], job.story(status)
    audited = json.loads(netns.tm("audit", job.id, "--json").stdout)
    assert audited["ok"], audited
    assert audited["inputs"][0]["records"] == FILES * LINES, audited
    noted = {
        line
        for path in (netns.folder / "notes").iterdir()
        if path.suffix != ".part"
        for line in path.read_text().splitlines()
    }
    assert noted == {f"{number} {line}" for number in range(FILES) for line in range(LINES)}
