"""Start a function of the driver's as a job in its application, and know at once how it does.

The function and its argument are pickled by pyspark's cloudpickle, and are a file of the job, as the modules that call it: executors need
nothing of ours. They travel as all files of jobs do.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainmaster.core.errors import BadInput, JobFailed
from trainmaster.spark.nodes.entry import COMMAND, FOLDER

if TYPE_CHECKING:
    from trainmaster.client.api import Run

ENDS_WITHIN = 15.0  # s for a job's companions, such as servers on the driver, to end after the job
NOTICE = 10.0  # s between two lines about a wait
_LONGEST_CAUSE = 500  # characters of a status's cause
_ERROR = "spark-function"
_LOG = logging.getLogger(__name__)
_OURS = Path(__file__).parents[2]  # the package trainmaster
# A function may import all modules of `spark`, so these need nothing else of ours when they are imported, but `trainmaster.runtime`.
_CARRIED = ("spark", "core/__init__.py", "core/errors.py", "host/__init__.py", "host/locks.py", "host/java.py")


def pickled(function: Any, arguments: Any) -> bytes:
    """Return the function and its argument as bytes. Raises BadInput where they cannot be pickled."""
    from pyspark import cloudpickle

    parts = {"tf_args": arguments, "map_fun": function}
    for name, part in parts.items():
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            raise BadInput(
                f"{name} cannot be pickled: {type(error).__name__}: {error}", place=name,
                mend="make what lives in the driver alone (contexts, locks, open files) inside the function instead", anchor=_ERROR,
            ) from error  # fmt: skip
    content: bytes = cloudpickle.dumps((function, arguments))
    return content


def default_file_system(context: Any) -> str:
    """Return Hadoop's default file system, without the last slash of `file:///`."""
    name = str(context._jsc.hadoopConfiguration().get("fs.defaultFS"))
    return name[:-1] if name.startswith("file://") and len(name) > 7 and name.endswith("/") else name


def uses_alias() -> bool:
    """Tell whether this driver imports us as `tensorflowonspark`."""
    module = sys.modules.get("tensorflowonspark")
    return module is not None and Path(module.__file__ or "").is_relative_to(_OURS)


class FunctionJob:
    """A job whose tasks call a function. `nodes`: how many of each role, in the order of their executor ids. `facts`: those of `entry`;
    where there are `servers`, the nodes of the role ps are not tasks.
    """

    def __init__(self, context: Any, name: str, function: bytes, nodes: Mapping[str, int], **facts: Any) -> None:
        self.context, self.nodes = context, {role: count for role, count in nodes.items() if count}
        self.tasks = {role: count for role, count in self.nodes.items() if role != "ps" or not facts.get("servers")}
        self._name, self._function, self._facts = name, function, facts
        self._news = threading.Condition()
        self._started: set[str] = set()
        self._is_formed = False  # `on_formed` was called for the present addresses
        self._end: Mapping[str, Any] | None = None
        self._failure = ""
        self._last_lines: dict[str, list[str]] = {}  # of attempts that have ended
        self._run: Any = None
        # Called when all tasks run, also after each restart that changes addresses.
        self.on_formed: Callable[[], None] = lambda: None
        self.on_end: list[Callable[[], None]] = []

    @property
    def has_ended(self) -> bool:
        """Tell whether it has ended, well or not."""
        return self._end is not None

    @property
    def has_failed(self) -> bool:
        """Tell whether it has ended, and not well."""
        return bool(self._failure) or (self._end is not None and self._end["state"] != "succeeded")

    # -- start --

    def start(self, **keys: Any) -> None:
        """Submit the job. `keys`: those of a job file, beside roles and files."""
        from trainmaster.client.api import start_job
        from trainmaster.core.spec.reading import job_from
        from trainmaster.spark import in_application, open_to_jobs

        application = open_to_jobs(self.context)
        job = in_application(application, job_from({"name": self._name, "files": [FOLDER], **keys}))

        with tempfile.TemporaryDirectory(prefix="trainmaster-node-") as folder:
            self.write(Path(folder, FOLDER))
            self._run = start_job(job, "spark", folder, "")
        self._watcher = threading.Thread(target=self._watch, daemon=True, name=f"trainmaster-{self._run.id}")
        self._watcher.start()

    @property
    def id(self) -> str:
        return str(self._run.id)

    @property
    def run(self) -> Run:
        """Return the job, once it was submitted."""
        run: Run = self._run
        return run

    def role(self, **keys: Any) -> dict[str, Any]:
        """Return a role whose tasks take what a task of the application takes."""
        from trainmaster.engines.spark.bridge.executors import task_cpus
        from trainmaster.engines.spark.limits import memory_limit

        conf, cores = dict(self.context.getConf().getAll()), task_cpus(self.context)
        resources = {"cores": cores}
        if (limit := memory_limit(conf)) is not None:  # a share of what the executor's cluster leaves beside the heap
            slots = max(1, int(conf.get("spark.executor.cores", "1")) // cores)
            resources |= {"memory": limit // slots, "overhead": 0}
        return {"command": COMMAND, "resources": resources, **keys}

    def write(self, folder: Path) -> None:
        """Write what a program needs: the function, its facts, and our modules."""
        (folder / "trainmaster").mkdir(parents=True)
        for name in _CARRIED:
            place = folder / "trainmaster" / name
            place.parent.mkdir(exist_ok=True)
            if (_OURS / name).is_dir():
                shutil.copytree(_OURS / name, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(_OURS / name, place)
        places = {"defaultFS": default_file_system(self.context), "working_dir": os.getcwd()}
        facts = {"first": self._first_ids(), "alias": uses_alias(), **places, **self._facts}
        (folder / "facts.json").write_text(json.dumps(facts))
        (folder / "function").write_bytes(self._function)

    def _first_ids(self) -> dict[str, int]:
        """Return the executor id of each role's first node."""
        return dict(zip(self.nodes, accumulate(self.nodes.values(), initial=0), strict=False))

    # -- waits --

    def await_start(self, timeout: float, *, only_slots: bool = False) -> None:
        """Wait until all functions are called. Raises JobFailed where one fails meanwhile, and TimeoutError after `timeout` seconds.

        `only_slots`: nodes that have their slots may take longer to begin.
        """
        needed = sum(self.tasks.values())
        limit, notice = time.monotonic() + timeout, time.monotonic() + NOTICE
        with self._news:
            while len(self._started) < needed and self._end is None:
                now = time.monotonic()
                if now > limit and only_slots and not self._run.status()["waiting"]:
                    limit = now + NOTICE
                if now > limit:
                    words = self._waiting()
                    raise TimeoutError(
                        f"timed out after {timeout:g} s, waiting for {needed} nodes: {words}; "
                        "ask for fewer (num_executors), or give the application more slots (spark.cores.max, spark.executor.cores)"
                    )
                if now > notice:
                    notice = now + NOTICE
                    _LOG.info("%s waits for %d nodes: %s", self.id, needed, self._waiting())
                self._news.wait(min(limit, notice) - now)
        self.check()

    def await_end(self, timeout: float = threading.TIMEOUT_MAX) -> None:
        """Wait until all functions have returned. Raises JobFailed, and TimeoutError after `timeout` seconds, which kills the job."""
        with self._news:
            if not self._news.wait_for(lambda: self._end is not None, min(timeout, threading.TIMEOUT_MAX)):
                self._run.kill("it ran too long")
                raise TimeoutError(f"{self.id} has not ended after {timeout:g} s, and was killed")
        self._watcher.join(ENDS_WITHIN)
        self.check()

    def ends_within(self, seconds: float) -> bool:
        """Wait for the job's end, at most so long; tell whether it has ended."""
        with self._news:
            return self._news.wait_for(lambda: self._end is not None, seconds)

    def check(self) -> None:
        """Raise JobFailed, with the last lines of the task that failed first, where the job has failed."""
        from trainmaster.client.api import failed

        if self._failure:
            raise JobFailed(self._failure, place=self.id, anchor="job-failed")
        if self._end is not None and self._end["state"] != "succeeded":
            raise failed(self._end)

    def words_of_end(self, seconds: float) -> str:
        """Say how the job has ended, with the last lines of the task that failed; "" where it runs on after `seconds`."""
        if not self.ends_within(seconds):
            return ""
        try:
            self.check()
        except JobFailed as error:
            return str(error)
        return f"{self.id} has ended: ask for results before that"

    def kill(self, why: str = "") -> None:
        """End the job, where it has not ended. `why` is for its status."""
        if self._run is not None and self._end is None:
            self._run.kill(why)

    def fail(self, failure: str) -> None:
        """End the job, for what happened outside it."""
        with self._news:
            self._failure = self._failure or failure
        self.kill(textwrap.shorten(failure.partition("\n")[0], _LONGEST_CAUSE))

    def cluster(self) -> str:
        """Return the addresses of the job's present tasks as TF_CLUSTER_DEF has them."""
        from trainmaster.client.jobs.past import Past
        from trainmaster.core.machine.formation import formation
        from trainmaster.frameworks import placement

        state = Past(self.id).state()
        formed = formation(state, state.groups[0])
        return placement("tensorflow", formed, formed.peers[0].task).env["TF_CLUSTER_DEF"]

    def present_nodes(self) -> list[dict[str, Any]]:
        """Return facts of each node in the cluster, in the order of executor ids."""
        servers = {"ps": self._facts["servers"]} if self._facts.get("servers") else {}
        cluster, first = {**json.loads(self.cluster()), **servers}, self._first_ids()
        nodes = [
            {"executor_id": first[role] + index, "host": host, "job_name": role, "task_index": index, "port": int(port)}
            for role, addresses in cluster.items()
            for index, (host, _, port) in enumerate(address.rpartition(":") for address in addresses)
        ]
        return sorted(nodes, key=lambda node: node["executor_id"])

    def link(self, name: str) -> str | None:
        """Return the address of a page of the job."""
        return self._run.status()["links"].get(name) or None

    def _waiting(self) -> str:
        """Say what is asked and what is free."""
        missing = sum(self.tasks.values()) - len(self._started)
        return f"{missing} of them do not run yet; what waits: {self._run.status()['waiting'] or 'nothing is missing for them'}"

    def _watch(self) -> None:
        """Follow the job to its end."""
        try:
            for event in self._run.events(follow=True):
                self._take(event)
            status = self._run.wait(check=False)
        except Exception as error:  # noqa: BLE001  whoever waits must hear of it
            _LOG.exception("%s cannot be followed", self.id)
            status = {"state": "failed"}
            self.fail(f"it cannot be followed: {type(error).__name__}: {error}")
        with self._news:
            self._end = status
            self._news.notify_all()
        for act in self.on_end:
            act()

    def _take(self, event: Mapping[str, Any]) -> None:
        from trainmaster.core.machine.reasons import words

        if event["type"] == "generation-formed":
            members = {task for task, _ in event["members"]}
            self._started -= members
            self._is_formed = self._is_formed and all(task.startswith("evaluator:") for task in members)
        elif event["type"] == "attempt-ended":
            self._last_lines[event["task"]] = event.get("tail") or []
        elif event["type"] == "task-failed" and event["task"].startswith("evaluator:"):  # alone it would not end a job
            failure = f"{event['task']} {words(event['reason'], event['figures'])}"
            self.fail("\n  ".join([failure, *self._last_lines.get(event["task"], ())]))
        elif event["type"] == "started":
            self._started.add(event["task"])
            if len(self._started) == sum(self.tasks.values()):
                if not self._is_formed:
                    self._is_formed = True
                    self.on_formed()
                with self._news:
                    self._news.notify_all()
