"""The driver of a job's own application: a context, its bridge, and nothing else. It ends when the job has ended.

It reports to its submitter over a Unix socket, by one line of JSON: `{"application": ID}`, or `{"error": TEXT}`. Then the submitter hands
the job to the bridge. The driver ends early if the submitter is gone before that, or if the JVM is gone. The JVM of spark-submit is our
parent and holds the other end of our stdin, so its end is the end of our stdin.

On a node (`deploy: cluster`) there is no submitter any more: the driver finds the job in a file of its own directory, and starts the job's
master.

Its last act is a note in the job's storage, from which `tm status` shows why the application has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from trainmaster.engines.spark import ENGINE, wire
from trainmaster.engines.spark.bridge.bridge import JVM_DIED, Bridge, bridge_of, first_line

PAYLOAD = "payload.json"
MASTER = "trainmaster.master.container:main"
PROBE = 30.0  # s that an executor has for its first task; where all are busy, the job waits and says so
HAND_OVER = 60.0  # s for the job's master to come once the submitter is gone
MASTER_LEAVES = 120.0  # s for a master's last acts, once it has given the tasks back
_PAUSE = 0.2
_CAUSES = ("Python in worker has different version", "Cannot run program", "ModuleNotFoundError")


def run(job: str) -> int:
    """Be the driver of a job's application; return the exit status."""
    if os.path.exists(PAYLOAD):
        return _run_on_node(job)
    with wire.connect_to_submitter(job) as submitter:
        try:
            context = _context()
            _probe(context)
            bridge = bridge_of(context, only=job)
        except Exception as error:  # noqa: BLE001  Spark's own: the submitter shows it
            submitter.sendall(wire.line({"error": reason_of(str(error))}))
            return 1
        threading.Thread(target=_watch_jvm, args=(bridge, job), daemon=True).start()
        submitter.sendall(wire.line({"application": bridge.application}))
        is_taken = _wait_for_master(bridge, job, submitter)
    state = bridge.wait_for_end(job) if is_taken else "abandoned"
    wire.note_end(job, ENDS.get(state, state))
    context.stop()
    _leave_folder()
    return 0


def _run_on_node(job: str) -> int:
    """Be the driver on a node, with the job's master as a child; return the exit status."""
    with open(PAYLOAD) as file:
        payload = json.load(file)
    os.unlink(PAYLOAD)  # a link, to a file that only this user reads and that goes with the application
    context = _context()
    _probe(context)
    bridge = bridge_of(context, only=job)
    files = [(name, os.path.abspath(path), is_archive) for name, path, is_archive in payload.pop("files")]
    payload |= bridge.answer_submit(job, payload["token"], files, payload.pop("pool"))
    payload["application"] = bridge.application
    threading.Thread(target=_watch_jvm, args=(bridge, job), daemon=True).start()
    environ = {"TRAINMASTER_CONTAINER": ENGINE.container_side, "TRAINMASTER_PYTHON": sys.executable}
    master = subprocess.Popen(
        ["/bin/sh", "runtime/start", MASTER], stdin=subprocess.PIPE, env={**os.environ, **environ}
    )
    assert master.stdin is not None
    master.stdin.write(json.dumps(payload).encode())
    master.stdin.close()
    threading.Thread(target=_follow_master, args=(master, bridge, job), daemon=True).start()
    bridge.wait_for_end(job)
    status = master.wait(MASTER_LEAVES)
    context.stop()
    return status


def _follow_master(master: subprocess.Popen[bytes], bridge: Bridge, job: str) -> None:
    """End the job's tasks once its master has ended, which may not have begun yet to follow the bridge."""
    master.wait()
    bridge.answer_end(job)


ENDS = {
    "ended": "its master has ended it",
    "failed": "its master, beside the driver, is gone",
    "abandoned": "its submitter is gone",
}


def _context() -> Any:
    """Return the context of the application, by the properties that spark-submit has read."""
    from pyspark import SparkConf, SparkContext

    return SparkContext(conf=SparkConf())


def _probe(context: Any) -> None:
    """Run one task, which raises where executors cannot run our Python: none there, or one of another version."""
    from pyspark import InheritableThread

    errors: list[Exception] = []

    def task() -> None:
        try:
            context.setJobDescription("the first task, before the job")
            context.addJobTag("trainmaster-probe")
            context.parallelize([0], 1).map(str).collect()
        except Exception as error:  # noqa: BLE001  raised again below
            errors.append(error)

    thread = InheritableThread(target=task, daemon=True)
    thread.start()
    thread.join(PROBE)
    if thread.is_alive():
        context.cancelJobsWithTag("trainmaster-probe")
    elif errors:
        raise errors[0]


def reason_of(text: str) -> str:
    """Return the line of Spark's error that says why: that of Python or the system, where it has one."""
    cause = next((text[text.index(mark) :] for mark in _CAUSES if mark in text), text)
    return first_line(Exception(cause))


def _wait_for_master(bridge: Bridge, job: str, submitter: socket.socket) -> bool:
    """Return once the job's master has connected; False where the submitter is gone, and no master comes."""
    submitter.settimeout(_PAUSE)
    gone_at: float | None = None
    while (state := bridge.answer_state(job)) in ("unknown", "submitting"):
        if gone_at is not None:
            if state == "unknown" or time.monotonic() > gone_at + HAND_OVER:
                return False
            time.sleep(_PAUSE)
            continue
        with contextlib.suppress(TimeoutError):
            submitter.recv(1)
            gone_at = time.monotonic()
    return True


def _watch_jvm(bridge: Bridge, job: str) -> None:
    """End everything where the JVM is gone."""
    while os.read(0, 1 << 16):
        pass
    if bridge.answer_state(job) in ("ended", "failed"):
        return  # it ends in order
    wire.note_end(job, "the driver's JVM is gone")
    bridge.application_ended(JVM_DIED)
    _leave_folder()
    os._exit(1)


def _leave_folder() -> None:
    """Remove the directory that was made for this driver, in which it runs."""
    shutil.rmtree(os.getcwd(), ignore_errors=True)
