"""What a job did not keep: each loss is in its status and in the last lines of its commands, whatever else went wrong later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripted import Script, job, role

import trainmaster
from trainmaster.core.machine.report import status
from trainmaster.core.machine.snapshot import dump, load
from trainmaster.words.text import ended_lines, loss_lines

OUT = {"model": {"url": "memory://out"}}
LINK = "not stored: passwd (a link that leads out of the working directory)"


def lost_files(script: Script) -> list[tuple[str, str, str]]:
    return [
        (loss["task"], loss["of"], loss["detail"]) for loss in status(script.state)["losses"] if loss["kind"] == "files"
    ]


def test_files_that_an_output_lacks_are_named_however_many_troubles_follow() -> None:
    script = Script(job(worker=role(2), outputs=OUT, checkpoint="ckpt"))
    script.start("worker:0", "worker:1")
    for task in ("worker:0", "worker:1"):
        script.report(task, "warned", what="output model", detail=LINK)
    script.report("worker:0", "warned", what="checkpoint sets", detail="not stored: pipe (a named pipe)")
    script.report("worker:0", "checkpoint", set=3)
    script.report("worker:0", "warned", what="its storage is away", detail="for a moment")
    assert lost_files(script) == [
        ("worker:0", "output model", LINK),
        ("worker:1", "output model", LINK),
        ("worker:0", "checkpoint sets", "not stored: pipe (a named pipe)"),
    ]
    assert loss_lines(status(script.state)) == [
        "  lost: passwd (a link that leads out of the working directory): not in the output model of worker:0, worker:1",
        "  lost: pipe (a named pipe): not in the checkpoint sets of worker:0",
    ]
    assert status(load(json.loads(json.dumps(dump(script.state)))))["losses"] == status(script.state)["losses"]


def test_what_a_later_attempt_has_committed_whole_is_not_lost() -> None:
    script = Script(job(worker=role(), outputs=OUT))
    script.start("worker:0")
    script.report("worker:0", "warned", what="output model", detail=LINK)
    script.fail("worker:0")
    assert len(lost_files(script)) == 1
    script.start("worker:0")
    script.succeed("worker:0")
    script.close()
    assert lost_files(script) == []


def test_many_losses_are_not_all_told() -> None:
    losses = [
        {"kind": "files", "of": "output model", "task": f"worker:{index}", "detail": f"not stored: {index} (a socket)"}
        for index in range(20)
    ]
    lines = loss_lines({"losses": losses})
    assert len(lines) == 9
    assert lines[-1] == "  lost: files of 12 more outputs; the job's events name them"


def test_the_last_lines_name_what_an_output_left_out(tmp_path: Path, home: Any) -> None:
    command = ["sh", "-c", "mkdir -p model/empty; echo x > model/x; ln -s /etc/passwd model/passwd; mkfifo model/pipe"]
    outputs = {"model": {"url": str(tmp_path / "out"), "layout": "flat", "from": "worker:0"}}
    run = trainmaster.submit(
        {"name": "t", "roles": {"worker": {"command": command}}, "outputs": outputs}, directory=tmp_path
    )
    last = ended_lines(dict(run.wait()))[-1]
    assert last == (
        "  lost: passwd (a link that leads out of the working directory), pipe (a named pipe), empty (an empty folder): "
        "not in the output model of worker:0"
    )
