"""Jobs that pages are tested with: one whose programs a test leads by hand, one of a thousand tasks, and one made of hostile text."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from conformance.engines import Submitted, role
from scripted import Script
from scripted import job as scripted_job

import trainmaster
from trainmaster.core.machine import stimuli
from trainmaster.core.machine.events import Event, encode
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.host.places import job_storage
from trainmaster.log.epochs import take
from trainmaster.log.storage import LocalStorage
from trainmaster.log.writer import open_writer

PROGRAM = Path(__file__).parent.parent / "programs" / "train_by_hand.py"
STEPS = 10  # that a job by hand has
# Text that does something where a page takes it for markup, an attribute, an address or a template.
HOSTILE = (
    """<script>window.hostile = 1</script>""",
    """<img src=x onerror="window.hostile = 2">""",
    """"'><svg onload="window.hostile = 3">""",
    """' autofocus onfocus='window.hostile = 4' x='""",
    """</title></style></textarea></script><script>window.hostile = 5</script>""",
    """javascript:alert(6)""",
    """{{ 7 * 191 }}${7 * 191}<%= 7 * 191 %>""",
    """<div hx-get="/" hx-trigger="load" hx-on:load="window.hostile = 8" hx-swap-oob="true" id="head">x</div>""",
    """<meta http-equiv=refresh content="0;url=/elsewhere">""",
    """\u202egnp.exe\x1b]8;;javascript:alert(9)\x1b\\link\x1b]8;;\x1b\\ \x1b[31mred\x07""",
)


@attrs.define
class ByHand(Submitted):
    """A running job: its programs do what the test says."""

    folder: Path

    def go_on(self, step: int) -> None:
        """Have the programs train up to this step."""
        self._write("steps", str(step))

    def fail(self, why: str = "loss is nan") -> None:
        self._write("fail", why)

    def diverge(self) -> None:
        """Have the loss be nan from now on."""
        self._write("nan", "")

    def finish(self) -> None:
        self._write("end", "")

    def _write(self, name: str, content: str) -> None:
        draft = self.folder / f"{name}.draft"
        draft.write_text(content)
        draft.rename(self.folder / name)


@contextmanager
def by_hand(
    folder: Path, name: str = "by-hand", replicas: int = 2, text: str = "accuracy", least: int = 0, **keys: Any
) -> Iterator[ByHand]:
    """Have a job of this machine whose programs run, and end it. `least`: members of an elastic one. `keys`: more of its role."""
    folder.mkdir()
    for file, content in (("steps", "0"), ("text", text)):
        (folder / file).write_text(content)
    command = [sys.executable, str(PROGRAM), str(folder), str(STEPS)]
    size = {"min": least, "max": replicas} if least else replicas
    job = {
        "name": name, "files": [], "outputs": {"model": {"url": str(folder / "out")}},
        "roles": {"worker": role(command, size, **{"restart": {"scope": "task", "limit": 0}, "warm": False, **keys})},
    }  # fmt: skip
    running = ByHand(trainmaster.submit(job), folder)
    try:
        for index in range(replicas):
            running.until_line("trains", f"worker:{index}")
        yield running
    finally:
        if job_storage(running.id).exists():  # the test may have removed it
            running.run.kill("the test is over")
            running.end()


def hostile(folder: Path) -> Any:
    """Have a running job whose every text is hostile: names, arguments, variables, metrics and output."""
    text = " ".join(HOSTILE)
    env = {f"HOSTILE_{number}": line for number, line in enumerate(HOSTILE)}
    return by_hand(folder, name="hostile", text=text, env=env)


TAIL = ["Traceback (most recent call last):", "ValueError: loss is nan"]


def thousand_tasks(failures: int = 100) -> list[Event]:
    """Return the events of a job of 1,000 tasks that fails in the end: so many attempts failed, and then one for good."""
    restart = {"scope": "task", "limit": failures}
    script = Script(
        scripted_job(name="a-thousand-tasks", gang=False, worker=role("python train.py", 1000, restart=restart))
    )
    keys = [f"worker:{index}" for index in range(1000)]
    script.grant(*keys)
    _run(script, keys)
    for key in keys[:failures]:
        _report(script, [key], "ended", after=0.5, reason="exit", status=1, elapsed=60.0, figures={}, tail=TAIL)
    _run(script, keys[:failures])
    _report(script, keys[failures:], "ended", after=90.0, reason="exit", status=0, elapsed=150.0)
    _report(script, keys[:1], "ended", after=30.0, reason="exit", status=1, elapsed=120.0, figures={}, tail=TAIL)
    script.close()
    return script.log


def _run(script: Script, keys: Sequence[str]) -> None:
    """Have the programs of these tasks run, from the granted containers on."""
    script.ask()
    _report(script, keys, "ready", after=2.0, address="10.0.0.1", ports={"main": 20000})
    script.ask()
    _report(script, keys, "started", after=0.5, pid=7)


def _report(script: Script, keys: Sequence[str], kind: str, *, after: float, **data: Any) -> None:
    """Have the agents of these tasks say the same at once, which a thousand turns would take seconds for."""
    reports = []
    for key in keys:
        task = script.task(key)
        script.numbers[key, task.serial] = number = script.numbers.get((key, task.serial), 0) + 1
        reports.append(stimuli.Report(key, task.serial, number, task.attempt, kind, data))
    script.take(*reports, after=after)


def record(events: Sequence[Event]) -> str:
    """Write a job's log, as if it had run on this machine and had just ended; return the job."""
    submitted = next(event.data for event in events if event.type == "submitted")
    job: str = submitted["id"]
    directory = job_storage(job)
    directory.mkdir(parents=True)
    (directory / "job.json").write_text(json.dumps(job_to(job_from(submitted["job"]))))
    (directory / "token").write_text("of a job that is over")
    (directory / "site.json").write_text(json.dumps({"engine": "local"}))
    storage, shift = LocalStorage(directory), time.time() - events[-1].at
    epoch = take(storage)
    writer = open_writer(storage, epoch, 0)
    writer.append([encode(attrs.evolve(event, at=event.at + shift, epoch=epoch)) for event in events], sync=True)
    writer.close()
    return job
