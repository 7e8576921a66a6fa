"""TensorBoard for jobs: a task of the job that shows its event files while it runs, and runs over files that jobs left.

While a job runs, its key `tensorboard` is a role of this name: one small task that does not count, so neither its end nor its failure
touches the job, with a page under `links`. It reads what the other tasks write where they write it. On this machine that may be a directory
of each task; on a cluster nobody sees another task's directory, so there the logs are at a URL or on a path that all nodes have mounted.

TensorBoard is given files of its own machine alone. Where TensorFlow is installed, TensorBoard uses its file system, which knows neither
`hdfs://` nor `s3://`; elsewhere it needs fsspec. So event files at a URL are copied to the machine where TensorBoard runs, and the copy
follows them: by an input `as: follow` of its task, and by `launching` for a TensorBoard of this machine.

Once a job is over, its event files are what its outputs, its checkpoint's path and `tensorboard.logs` have of them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from trainmaster.client.jobs.past import described
from trainmaster.client.jobs.places import absolute, job_storage, site_of, state_dir
from trainmaster.core.errors import BadInput, NotFound
from trainmaster.core.spec.job import (
    BOARD,
    BOARD_LABEL,
    COPIED,
    EVENT_FILES,
    MIB,
    SHARED,
    Input,
    Job,
    Link,
    Output,
    Replicas,
    Resources,
    Role,
    Stop,
)
from trainmaster.engines import registry
from trainmaster.log.storage import local_path

if TYPE_CHECKING:
    from trainmaster.data.following import Following

HOST = "127.0.0.1"
PORT = 6006  # TensorBoard's own
_PORTS = 100  # that are tried from there on
LOGS = "tensorboard-logs"  # the input that follows event files at a URL
_LOOK = 5.0  # s between two looks for what is new there
_MARK = "tfevents"  # in the name of each event file (tensorboard/summary/writer/event_file_writer.py)
# No core is reserved on this machine, whose ledger counts thousandths: a job that has all cores runs with TensorBoard too.
_CORES_HERE, _CORES = 0.0004, 0.1


# -- while the job runs --


def with_board(job: Job, base: Path, engine: str) -> Job:
    """Return the job with the task that its key `tensorboard` asks for, unless it has a role of this name.

    Raises BadInput where TensorBoard would not see the logs. `base`: the working directory of tasks that share one.
    """
    if job.tensorboard is None or BOARD in job.roles:
        return job
    is_local = registry.is_on_this_machine(engine)
    memory = job.tensorboard.memory
    role = Role(
        name=BOARD, command=_command_over(job, base, engine), replicas=Replicas(1, 1), counts=False, warm=False, threads=1,
        resources=Resources(_CORES_HERE if is_local else _CORES, memory, overhead=max(64 * MIB, memory // 20)),
        ports={"board": 0}, workdir=COPIED if local_path(job.tensorboard.logs) is None else SHARED, stop=Stop(grace=1.0),
    )  # fmt: skip
    return attrs.evolve(
        job, roles={**job.roles, BOARD: role}, links={BOARD_LABEL: Link(role=BOARD, port="board", path="/"), **job.links},
        inputs=job.inputs | {
            name: Input(name, url=fields["url"], as_=fields["as"], to=tuple(fields["to"]))
            for name, fields in inputs(job.tensorboard.logs).items()
        },
    )  # fmt: skip


def inputs(logs: str) -> dict[str, dict[str, Any]]:
    """Return the inputs, as a job file has them, of the task of TensorBoard: one that follows the event files, where these are at a URL."""
    if local_path(logs) is not None:
        return {}
    return {LOGS: {"url": f"{logs.rstrip('/')}/**/*{_MARK}*", "as": "follow", "to": [BOARD]}}


def command(logs: str, engine: str, arguments: str = "", program: str = "tensorboard") -> str:
    """Return the command of TensorBoard, reachable from this machine, or from anywhere in the cluster. Its task needs `inputs(logs)`."""
    path = local_path(logs) if "://" in logs else logs
    return _line(f"--logdir {shlex.quote(LOGS if path is None else path)}", engine, arguments, program)


def _line(logs: str, engine: str, arguments: str = "", program: str = "tensorboard") -> str:
    host = f"--host {HOST}" if registry.is_on_this_machine(engine) else "--bind_all"
    return f'{program} {logs} --port "$TRAINMASTER_PORT_BOARD" {host}{arguments}'


def _command_over(job: Job, base: Path, engine: str) -> str:
    assert job.tensorboard is not None
    logs = job.tensorboard.logs
    if job.tensorboard.is_shared:
        return command(logs, engine)
    if not registry.is_on_this_machine(engine):
        raise BadInput(
            f"{logs} is in each task's own directory, and TensorBoard, which is another task, does not see it on {engine}",
            place=f"tensorboard.logs: {logs}",
            mend="write event files to storage that all tasks reach, and name that: a URL like hdfs://, s3://, or a mounted path",
            anchor="not-on-the-cluster",
        )
    if all(role.workdir == SHARED for role in job.roles.values()):
        return command(absolute(logs, base), engine)
    runs = [f'{task}:"$work"/{shlex.quote(folder)}' for task, folder in _task_folders(job, logs)]
    if _is_shared(job):
        runs.append(shlex.quote(f"shared:{absolute(logs, base)}"))
    work = f"work={shlex.quote(str(state_dir() / 'jobs'))}/$TRAINMASTER_JOB/work"
    return f"{work}; exec " + _line("--logdir_spec " + ",".join(runs), engine)


def _task_folders(job: Job, path: str) -> Iterator[tuple[str, str]]:
    """Yield each task with a working directory of its own, and `path` in that, below the job's `work`."""
    for role in job.roles.values():
        if role.workdir == COPIED:
            for index in range(role.replicas.max):
                yield f"{role.name}-{index}", f"{role.name}-{index}/{path}"


def _is_shared(job: Job) -> bool:
    return any(role.workdir == SHARED and role.name != BOARD for role in job.roles.values())


# -- over the files that jobs left --


def event_folders(job_id: str) -> dict[str, str]:
    """Return run -> folder, a path or a URL, of a job's event files: `JOB/TASK` where each task has its own. Raises StorageFailed."""
    job = described(job_id)
    runs: dict[str, str] = {}
    for run, folder in _places(job_id, job, site_of(job_id)):
        if folder not in runs.values() and _has_events(folder):
            runs[run] = folder
    return runs


def has_event_files(job_id: str) -> bool:
    """Tell whether a job has event files. Raises StorageFailed."""
    return any(_has_events(folder) for _, folder in _places(job_id, described(job_id), site_of(job_id)))


def no_event_files(jobs: str) -> NotFound:
    """Return the error that the jobs, as a sentence names them, have no event files."""
    return NotFound(
        f"{jobs} has no event files",
        mend="they are looked for in its outputs, at its checkpoint's path on this machine, and in its tensorboard.logs",
        anchor="no-event-files",
    )


def _places(job_id: str, job: Job, site: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield run, folder of each place where the job's programs may have left event files."""
    storage = job_storage(job_id)
    paths = [job.checkpoint.path] if job.checkpoint is not None else []
    if job.tensorboard is not None and job.tensorboard.is_shared:
        yield job_id, job.tensorboard.logs
    elif job.tensorboard is not None:
        paths.append(job.tensorboard.logs)
    for path in paths if registry.is_on_this_machine(str(site.get("engine", registry.DEFAULT))) else ():
        for task, folder in _task_folders(job, path):
            yield f"{job_id}/{task}", str(storage / "work" / folder)
            yield f"{job_id}/{task}", str(storage / EVENT_FILES / task)
        if _is_shared(job) and "cwd" in site:
            yield f"{job_id}/{path}", absolute(path, Path(str(site["cwd"])))
    carried = site.get("carried")
    brought = carried if isinstance(carried, Mapping) else {}
    for output in job.outputs.values():
        for url in dict.fromkeys((str(brought.get(f"outputs.{output.name}", output.url)), output.url)):
            yield from _output_places(job_id, job, output, url.rstrip("/"))


def _output_places(job_id: str, job: Job, output: Output, url: str) -> Iterator[tuple[str, str]]:
    from trainmaster.core.machine.state import outputs_of

    if output.as_ != "upload":
        return
    if output.layout == "flat":
        yield f"{job_id}/{output.name}", url
        return
    for role in job.roles.values():
        for index in range(role.replicas.max):
            if output.name in outputs_of(job, role.name, index):
                yield f"{job_id}/{role.name}-{index}/{output.name}", f"{url}/{role.name}-{index}"


def _has_events(folder: str) -> bool:
    from trainmaster.data.store.stores import store_for

    if (path := local_path(folder)) is not None:
        return any(_MARK in name for _, _, names in os.walk(path) for name in names)
    return any(_MARK in file.path.rpartition("/")[2] for file in store_for(folder).files())


def program() -> list[str]:
    """Return the TensorBoard of the user's environment as the beginning of a command. Raises NotFound where there is none."""
    from importlib.util import find_spec

    if (path := shutil.which("tensorboard")) is not None:
        return [path]
    if find_spec("tensorboard") is not None:
        return [sys.executable, "-P", "-m", "tensorboard.main"]
    raise NotFound(
        "TensorBoard is not installed on this machine", place=f"PATH: {os.environ.get('PATH', '')}",
        mend="pip install tensorboard, in the environment that is active", anchor="no-tensorboard",
    )  # fmt: skip


def address(port: int, path: str) -> str:
    """Return the address of a TensorBoard of this machine. `path`: a secret, since it refuses other users in no other way."""
    return f"http://{HOST}:{port}/{path}/"


@contextlib.contextmanager
def launching(runs: Mapping[str, str], port: int, path: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the command and the environment of a TensorBoard that shows the runs at `address(port, path)`, and follow event files at URLs.

    Its flags are in a file, since other users can read its command. So is what TensorBoard tells about itself: it does that in TMPDIR.
    Raises NotFound where there is no TensorBoard, and BadInput for a folder that cannot be named.
    """
    command = program()
    private = tempfile.TemporaryDirectory(prefix="trainmaster-tensorboard-", ignore_cleanup_errors=True)
    with private as root, _followed(runs, root) as folders:
        if odd := next((folder for folder in folders.values() if "," in folder or "\n" in folder), ""):
            raise BadInput(
                f"TensorBoard cannot be given {odd}: a comma is where a folder ends for it", place=odd,
                mend="name its parent folder: tensorboard --logdir PATH", anchor="no-event-files",
            )  # fmt: skip
        spec = ",".join(f"{run}:{local_path(folder)}" for run, folder in folders.items())
        flags = Path(root, "flags")
        lines = f"--logdir_spec={spec}\n--host={HOST}\n--port={port}\n--path_prefix=/{path}\n"
        flags.write_bytes(os.fsencode(lines))  # a name of a folder may be other than UTF-8
        yield [*command, f"--flagfile={flags}"], {**os.environ, "TMPDIR": root}


@contextlib.contextmanager
def _followed(runs: Mapping[str, str], root: str) -> Iterator[dict[str, str]]:
    """Yield the runs with a folder of this machine for each: a copy below `root` that follows the event files, for those at a URL."""
    from trainmaster.data.following import Following

    stop = threading.Event()
    copies = {
        run: Following(f"{folder.rstrip('/')}/**/*{_MARK}*", os.path.join(root, str(number)), stop)
        for number, (run, folder) in enumerate(runs.items())
        if local_path(folder) is None
    }
    thread = threading.Thread(target=_keep_following, args=(copies.values(), stop), daemon=True)
    if copies:
        thread.start()
    try:
        yield {run: copies[run].folder if run in copies else folder for run, folder in runs.items()}
    finally:
        stop.set()
        if copies:
            thread.join(_LOOK)


def _keep_following(copies: Collection[Following], stop: threading.Event) -> None:
    failures: set[str] = set()
    while True:
        for copy in copies:
            try:
                copy.look()
            except Exception as error:  # noqa: BLE001  the others are shown; the next look tries again
                if (failure := f"{copy.url} cannot be read now: {error}") not in failures:
                    failures.add(failure)
                    print(f"warning: {failure}", file=sys.stderr, flush=True)
        if stop.wait(_LOOK):
            return


def free_port(number: int | None) -> int:
    """Return this port, or the first free one from TensorBoard's own on. Raises BadInput where it, or all of these, are taken."""
    ports: Sequence[int] = range(PORT, PORT + _PORTS) if number is None else (number,)
    for port in ports:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was closed a moment ago is free
            with contextlib.suppress(OSError):
                listener.bind((HOST, port))
                return int(listener.getsockname()[1])
    if number is None:
        problem, place, mend = f"ports {ports[0]} to {ports[-1]} are taken", "", "name a free one: --port"
    else:
        problem, place, mend = f"port {number} is taken", f"--port {number}", "name another one, or 0 for any"
    raise BadInput(problem, place=place, mend=mend, anchor="no-free-port")
