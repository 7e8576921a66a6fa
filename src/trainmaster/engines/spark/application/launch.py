"""Start an application of a job's own by spark-submit, and return once it can take the job.

The driver runs in a directory of its own in the job's, with a session of its own: it outlives the command, and a Ctrl-C that the command
gets. Where the start fails or is interrupted, all its processes are ended and nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainmaster import interrupts
from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.engines.spark import wire
from trainmaster.engines.spark.application import properties, script
from trainmaster.engines.spark.application.masters import local_cores
from trainmaster.engines.spark.home import Home
from trainmaster.engines.spark.settings import PLACE, Settings
from trainmaster.host import linux, places

RUNTIME, PAYLOAD = "runtime.tar.gz", "payload.json"  # in the driver's directory
ENDS_WITHIN = 20.0  # s for a JVM that was asked to end
_PAUSE = 0.1
_WHY = re.compile(r"^(?:Exception in thread \"main\" |Error: |error: |\S*(?:Exception|Error): ?)\S")
_EMPTY_WORDS = (
    "Error: Could not create the Java Virtual Machine",
    "Error: A fatal exception has occurred",
)  # the line before says why
_DEEPER = re.compile(r"^Caused by: ")


def start(job_id: str, job: Any, options: Settings, master: str, home: Home, runtime: Path) -> str:
    """Start the application of a job; returns its id. Raises BadInput where Spark refuses, EngineFailed where it takes too long."""
    with wire.awaiting_driver(job_id) as listener, _begun(job_id, job, options, master, home, runtime, {}) as process:
        return _wait(process, listener, job.timeouts.start, wire.driver_log(job_id))


def start_on_node(
    job_id: str, job: Any, options: Settings, master: str, home: Home, runtime: Path, files: Mapping[str, str], payload: Mapping[str, Any]
) -> str:  # fmt: skip
    """Start the application of a job with its driver on a node of YARN; returns its id once YARN has it. `files`: name there -> path here.

    `payload`: the facts of the job that its driver needs; only this user can read the file that brings it.
    """
    from trainmaster.engines.spark.application import on_yarn

    folder = places.job_storage(job_id) / "driver"
    shipped = ",".join(
        f"{path}#{name}"
        for name, path in {**files, RUNTIME: str(folder / RUNTIME), PAYLOAD: str(folder / PAYLOAD)}.items()
    )
    more = {
        "spark.yarn.dist.files": shipped, "spark.yarn.tags": f"{on_yarn.TAG}{job_id}", "spark.yarn.submit.waitAppCompletion": "false",
        "spark.yarn.maxAppAttempts": "1",
    }  # fmt: skip
    with _begun(job_id, job, options, master, home, runtime, more, payload) as process:
        try:
            if process.wait(job.timeouts.start):
                raise _refused(reason_in(wire.driver_log(job_id)))
            application = on_yarn.jobs().get(job_id)
            if application is None:
                raise _refused("YARN lists no application with the job's tag, though spark-submit has ended well")
        except subprocess.TimeoutExpired as error:
            with interrupts.undisturbed():
                _end(process)
                on_yarn.end_job(job_id)
            raise _too_late(job.timeouts.start, wire.driver_log(job_id)) from error
        except BaseException:
            with interrupts.undisturbed():
                _end(process)
                on_yarn.end_job(job_id)
            raise
    shutil.rmtree(folder, ignore_errors=True)
    return application


@contextlib.contextmanager
def _begun(
    job_id: str, job: Any, options: Settings, master: str, home: Home, runtime: Path, more: Mapping[str, str],
    payload: Mapping[str, Any] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:  # fmt: skip
    """Begin spark-submit. Where the block fails, all its processes are ended. `more`: properties, after all others."""
    folder, log = places.job_storage(job_id) / "driver", wire.driver_log(job_id)
    folder.mkdir(mode=0o700)
    shutil.copyfile(runtime, folder / RUNTIME)
    shutil.copyfile(script.__file__, folder / "script.py")
    _write_private(folder / "spark.conf", properties.written(options, job, master, home, more))
    if payload is not None:
        _write_private(folder / PAYLOAD, json.dumps(payload))
    print(f"starting a Spark application on {master}; its driver's log is {log}", file=sys.stderr, flush=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [home.spark_submit, "--properties-file", str(folder / "spark.conf"), str(folder / "script.py"), job_id], cwd=folder,
            env=environment(home, master, options), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        with interrupts.heard():
            yield process
    except BaseException as error:
        with interrupts.undisturbed():
            _end(process)
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, KeyboardInterrupt):
            print("interrupted: the application is ended, and no job was begun", file=sys.stderr, flush=True)
        raise


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def environment(home: Home, master: str, options: Settings) -> Mapping[str, str]:
    """Return the variables of spark-submit. The driver's Python is Spark's own choice where the user made one."""
    environ = {
        **os.environ, "SPARK_HOME": str(home.folder), "TRAINMASTER_STATE_DIR": str(places.state_dir()),
        "TRAINMASTER_RUNTIME_DIR": str(places.runtime_root()),
    }  # fmt: skip
    named = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & environ.keys()
    if not named and "spark.pyspark.python" not in options.conf and "spark.pyspark.driver.python" not in options.conf:
        environ["PYSPARK_DRIVER_PYTHON"] = home.python
        if local_cores(master) is not None:
            environ["PYSPARK_PYTHON"] = home.python
    return environ


def _wait(process: subprocess.Popen[bytes], listener: socket.socket, within: float | None, log: Path) -> str:
    """Wait for the driver's word, and return its application."""
    end = None if within is None else time.monotonic() + within
    descriptor = linux.pidfd(process.pid)  # readable once the process has ended
    connection: socket.socket | None = None
    try:
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            awaited: list[Any] = [connection or listener, descriptor]
            ready = select.select(awaited, [], [], left)[0]
            if not ready:
                raise _too_late(within, log)
            if connection is None and listener in ready:
                connection = listener.accept()[0]
            elif connection is not None and connection in ready:
                connection.settimeout(None if left is None else max(left, _PAUSE))
                try:
                    with connection.makefile("rb") as reader:
                        answer = wire.read(reader)
                except TimeoutError:
                    raise _too_late(within, log) from None
                except (OSError, ValueError) as error:
                    raise _refused(f"who answers is not its driver: {error}") from None
                if "application" in answer:
                    threading.Thread(target=_stay_connected, args=(process, connection), daemon=True).start()
                    connection = None
                    return str(answer["application"])
                raise _refused(answer.get("error") or reason_in(log))
            elif descriptor in ready:
                raise _refused(reason_in(log))
    finally:
        os.close(descriptor)
        if connection is not None:
            connection.close()


def _stay_connected(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    """Keep the connection, by whose end the driver knows that this command is gone, until the driver has ended."""
    process.wait()
    connection.close()


def _too_late(within: float | None, log: Path) -> EngineFailed:
    return EngineFailed(
        f"the Spark application has not started within {within or 0:g} s: {_last_line(log)}", place=f"the driver's log: {log}",
        mend="see what it waits for, or raise timeouts.start", anchor="spark-not-started",
    )  # fmt: skip


def _refused(why: str) -> BadInput:
    return BadInput(
        f"the Spark application does not start: {why}", place=PLACE, mend=_mend(why), anchor="spark-not-started"
    )


def _mend(why: str) -> str:
    """Return what helps, by words of Spark's error."""
    for mark, mend in _MENDS:
        if mark in why:
            return mend
    return f"correct {PLACE}.conf, or this machine's spark-defaults.conf"


_PYTHONS = (
    "set PYSPARK_PYTHON to a Python that the executors have, and PYSPARK_DRIVER_PYTHON to one of the same version here"
)
_MENDS = (
    ("different version", _PYTHONS),
    ("Cannot run program", _PYTHONS),
    ("driver's Python", _PYTHONS),
    (
        "All masters are unresponsive",
        "check that the master is the one that you mean, and of the same version of Spark",
    ),
    ("HADOOP_CONF_DIR", "set HADOOP_CONF_DIR, or try a cluster here: tm cluster up hadoop"),
)


def reason_in(log: Path) -> str:
    """Return the line of the driver's log that says why it ended."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if not line.startswith(_EMPTY_WORDS)]
    deepest = [line.removeprefix("Caused by: ") for line in lines if _DEEPER.match(line)]
    errors = [line for line in lines if _WHY.match(line)]
    why = (errors or deepest or [line for line in lines if line] or ["its log is empty"])[
        0 if errors or deepest else -1
    ]
    return why.removeprefix('Exception in thread "main" ').removeprefix("error: ")[:500]


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    return next((line.strip()[:500] for line in reversed(lines) if line.strip()), "its log is empty")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the JVM and the driver, and return when both are gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + ENDS_WITHIN
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            while time.monotonic() < end:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(_PAUSE)
