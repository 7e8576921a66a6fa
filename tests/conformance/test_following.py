"""An input that is followed: its program finds, as files of its own, what is written elsewhere while it runs."""

from __future__ import annotations

import pytest
from conformance.engines import Engine, python, role

READ = """
    import os, time
    folder = os.environ["TRAINMASTER_INPUT_LOGS"]
    print("begun with", sorted(os.listdir(folder)), flush=True)
    path = os.path.join(folder, "run", "log")
    for wanted in ("one", "onetwo"):
        while not (os.path.exists(path) and open(path).read() == wanted):
            time.sleep(0.05)
        print("read", wanted, flush=True)
"""


@pytest.mark.needs("submitters-place")
def test_a_program_sees_files_that_come_and_grow_while_it_runs(engine: Engine) -> None:
    logs = engine.folder / "logs"
    followed = {"url": f"{logs}/**/log", "as": "follow"}
    job = engine.submit({"worker": role(python(READ))}, inputs={"logs": followed})
    job.until_line("begun with []")
    (logs / "run").mkdir(parents=True)
    (logs / "run" / "log").write_text("one")
    (logs / "run" / "checkpoint").write_text("not asked for")
    job.until_line("read one")
    with (logs / "run" / "log").open("a") as file:
        file.write("two")
    job.succeeded()
    assert "read onetwo" in job.lines()
