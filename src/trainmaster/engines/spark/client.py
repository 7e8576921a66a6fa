"""Submit a job into a Spark application of this user on this machine, and tell what became of it.

A job is known to later commands as `APPLICATION/JOB`, its `application`. A running application takes jobs once `trainmaster.spark.run` was
called in it; else one is started for the job, on the master that the job or `spark-defaults.conf` names. The job's master is a process
beside the driver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainmaster.core.containers import Request
from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.engines.contract import Free, OnCluster, Submission, Submitted
from trainmaster.engines.sections import wrong
from trainmaster.engines.spark import limits, wire
from trainmaster.engines.spark.application import masters, properties
from trainmaster.engines.spark.home import find_home
from trainmaster.engines.spark.master.engine import free
from trainmaster.engines.spark.settings import CLUSTER, PLACE, settings
from trainmaster.engines.spark.wire import ON_NODE
from trainmaster.host.places import state_dir

_STATES = {
    "submitting": ("running", "its master does not answer yet"),
    "running": ("running", "its master runs beside the driver"),
    "ended": ("ended", "its master has ended it"),
    "failed": ("killed", "its master, beside the driver, is gone: its tasks were cancelled"),
}


class Store:
    """A job's log is on the driver's machine, unless the job names a storage, which holds inputs and outputs of this machine too. Where the
    tasks are on this machine, so are these.
    """

    jobs = ""

    def __init__(self, job: Any = None, is_local: bool = False) -> None:
        self._job, self._is_local = job, is_local

    @property
    def inputs(self) -> str:
        return self.private("inputs")

    @property
    def outputs(self) -> str:
        return self.private("outputs")

    def private(self, kind: str) -> str:
        if self._job is not None and self._job.storage:
            return f"{self._job.storage.rstrip('/')}/{kind}"
        if self._is_local:
            return (state_dir() / "spark" / kind).as_uri()
        raise BadInput(
            f"{kind} that are paths of this machine need a storage that the executors reach, and the job has none", place="storage",
            mend="set storage to a URL (hdfs://, s3://); or name places that they reach, file://PATH where every node has that path",
            anchor="not-on-the-cluster",
        )  # fmt: skip

    def job_access(self, job: str) -> dict[str, Any] | None:
        return None


class SparkClient(OnCluster):
    """The client side of Spark."""

    killed_as = "killed-by-engine"  # with its application

    @property
    def place(self) -> str:
        return str(wire.folder())

    def own_master(self, job: Any) -> str:
        """Return the master of Spark on which an application is to be started for the job; "" where a running one takes the job."""
        options = settings(job.engines.get("spark") or {})
        wants_own = bool(options.conf) or options.deploy == CLUSTER
        if options.application or options.master or (not wants_own and _open_applications()):
            return options.master
        master = ""
        with contextlib.suppress(BadInput):  # no Spark is here
            master = properties.default_master(properties.defaults(find_home()))
        if wants_own and not master:
            raise wrong(f"{PLACE}.master", "it is missing, and no spark-defaults.conf names one", masters.WORDS)
        return master

    def application(self, job: Any) -> str:
        """Return the running application that the job names, else the only one there is. Raises BadInput where there is no such
        application.
        """
        named = settings(job.engines.get("spark") or {}).application
        if named and _lives(named):
            return named
        living = [] if named else _open_applications()
        if len(living) == 1:
            return living[0]
        trouble = f"there is no application {named} of yours here that takes jobs" if named else (
            f"{len(living)} Spark applications of yours take jobs here" if living else "no Spark application of yours takes jobs here"
        )  # fmt: skip
        which = f"applications: {', '.join(living)}" if living else (
            f"name a master to start one, {PLACE}.master: spark://HOST:PORT; or call trainmaster.spark.run(spark, job) in the driver of one"
        )  # fmt: skip
        raise BadInput(
            trouble, place=f"{PLACE}.application{f': {named}' if named else ''}", mend=which, anchor="spark-application"
        )

    def check(self, job: Any, requests: Sequence[Request]) -> None:
        if master := self.own_master(job):
            find_home().java()
            masters.check(master, settings(job.engines.get("spark") or {}))
            check_storage(job)
            cores = masters.local_cores(master)
            executors = [] if cores is None else [Free(master, float(cores), 0, 0, float(cores), 0, 0)]
            limits.check(requests, executors, {}, chooses_nodes=master == "yarn")
            properties.derived(job, master)
        else:
            application = self.application(job)
            limits.check(requests, free(self._ask(application, "free")), self._ask(application, "conf"))

    def free(self) -> Sequence[Free]:
        return [
            node
            for application in wire.applications()
            if _lives(application)
            for node in free(self._ask(application, "free"))
        ]

    def store(self, job: Any = None) -> Store:
        return Store(job, job is not None and masters.local_cores(self.own_master(job)) is not None)

    def submit(self, submission: Submission) -> Submitted:
        job = submission.job
        options, runtime = settings(job.engines.get("spark") or {}), submission.runtime(())
        master = self.own_master(job)
        if options.deploy == CLUSTER:
            return self._submit_to_node(submission, master, runtime)
        if master:
            from trainmaster.engines.spark.application.launch import start

            application = start(submission.job_id, job, options, master, find_home(), runtime)
        else:
            application = self.application(job)
        files = [("runtime", str(runtime), True)]
        files += [(file.name, str(file.path), file.unpacked) for file in submission.files]
        token = submission.secret["token"]
        answer = self._ask(application, "submit", job=submission.job_id, token=token, files=files, pool=options.pool)
        return Submitted(
            f"{application}/{submission.job_id}",
            {"link": answer["page"]},
            master={**payload_of(submission), "address": answer["address"]},
        )

    @staticmethod
    def _submit_to_node(submission: Submission, master: str, runtime: Path) -> Submitted:
        """Start an application whose driver, with the job's master, is on a node."""
        from trainmaster.core.spec.reading import job_to
        from trainmaster.engines.spark.application.launch import RUNTIME, start_on_node

        job, options = submission.job, settings(submission.job.engines.get("spark") or {})
        files = [["runtime", RUNTIME, True]] + [
            [file.name, f"{number}-{file.path.name}", file.unpacked] for number, file in enumerate(submission.files)
        ]
        payload = {
            **payload_of(submission), "files": files, "pool": options.pool, "job": job_to(job), "site": dict(submission.site)
        }  # fmt: skip
        paths = {f"{number}-{file.path.name}": str(file.path) for number, file in enumerate(submission.files)}
        application = start_on_node(submission.job_id, job, options, master, find_home(), runtime, paths, payload)
        return Submitted(f"{application}/{submission.job_id}")

    def find_jobs(self, prefix: str) -> dict[str, str]:
        from trainmaster.hadoop.conf import is_named

        applications: dict[str, str] = {}
        if is_named():
            from trainmaster.engines.spark.application import on_yarn

            with contextlib.suppress(EngineFailed):
                applications |= {job: f"{application}/{job}" for job, application in on_yarn.jobs().items()}
        for application in wire.applications():
            with contextlib.suppress(OSError):
                applications |= {job: f"{application}/{job}" for job in wire.ask(application, "jobs")}
        return {
            job: name
            for job, name in applications.items()
            if job.startswith(prefix) or prefix in (name, name.partition("/")[0])
        }

    def application_state(self, application: str) -> tuple[str, str]:
        name, _, job = application.partition("/")
        if name.endswith(ON_NODE):
            from trainmaster.engines.spark.application import on_yarn

            return on_yarn.state(name)
        try:
            state = wire.ask(name, "state", job=job)
        except OSError:
            return "killed", wire.over(name, job)
        return _STATES.get(state, ("unknown", f"the application {name} does not know it"))

    def end(self, application: str) -> None:
        name, _, job = application.partition("/")
        if name.endswith(ON_NODE):
            from trainmaster.engines.spark.application import on_yarn

            on_yarn.end(name)
            return
        with contextlib.suppress(OSError):
            wire.ask(name, "end", job=job)

    def forget(self, job_id: str, application: str) -> None:
        """Do nothing: the application keeps nothing of a job that is over."""

    def _ask(self, application: str, verb: str, **arguments: Any) -> Any:
        try:
            return wire.ask(application, verb, **arguments)
        except OSError as error:
            raise EngineFailed(wire.OVER.format(application), anchor="spark-application") from error


def payload_of(submission: Submission) -> dict[str, Any]:
    """Return the payload of the job's master, without its address."""
    secret, environment = submission.secret, submission.site.get("environment")
    return {
        "job_id": submission.job_id, **{name: secret[name] for name in ("token", "key", "secrets", "stores")},
        "certificate": submission.certificate, "storage_of_agents": bool(submission.job.storage),
        "variables": {"TRAINMASTER_PYTHON": f"{environment}/bin/python3"} if environment else {},
    }  # fmt: skip


def check_storage(job: Any) -> None:
    """Raise BadInput where the driver is on a node, and the job has no storage by which commands here follow it."""
    if settings(job.engines.get("spark") or {}).deploy == CLUSTER and not job.storage:
        raise BadInput(
            "the driver and the job's master are on a node, and the job has no storage that both it and we reach", place="storage",
            mend=f"set storage to a URL (hdfs://, s3://), or {PLACE}.deploy to client", anchor="not-on-the-cluster",
        )  # fmt: skip


def _open_applications() -> list[str]:
    """Return the running applications that take jobs."""
    applications = []
    for application in wire.applications():
        with contextlib.suppress(OSError):
            if wire.ask(application, "is_open"):
                applications.append(application)
    return applications


def _lives(application: str) -> bool:
    try:
        wire.connect(application).close()
    except OSError:
        return False
    return True
