"""Submit a job into a running Spark application of this user on this machine, and tell what became of it.

A job is known to later commands as `APPLICATION/JOB`, its `application`. The application has a bridge once `trainmaster.spark.run` was
called in it. The job's master is a process beside the driver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from trainmaster.core.errors import BadInput, EngineFailed
from trainmaster.engines.contract import Free, OnCluster, Request, Submission, Submitted
from trainmaster.engines.spark import limits, wire
from trainmaster.engines.spark.master.engine import OVER, free
from trainmaster.engines.spark.settings import PLACE, settings

_STATES = {
    "submitting": ("running", "its master does not answer yet"),
    "running": ("running", "its master runs beside the driver"),
    "ended": ("ended", "its master has ended it"),
    "failed": ("killed", "its master, beside the driver, is gone: its tasks were cancelled"),
}


class Store:
    """A job's log is on the driver's machine, unless the job names a storage; data lies where executors reach it."""

    jobs = ""

    @property
    def inputs(self) -> str:
        return self.private("inputs")

    @property
    def outputs(self) -> str:
        return self.private("outputs")

    def private(self, kind: str) -> str:
        raise BadInput(
            f"{kind} that are paths of this machine are not reached by the executors", place=kind,
            mend="name a place that they reach (hdfs://, s3://), or write file://PATH where every node has that path",
            anchor="not-on-the-cluster",
        )  # fmt: skip

    def job_access(self, job: str) -> dict[str, Any] | None:
        return None


class SparkClient(OnCluster):
    """The client side of Spark."""

    @property
    def place(self) -> str:
        return str(wire.folder())

    def application(self, job: Any) -> str:
        """Return the application that the job names, else the only one there is. Raises BadInput where that is none."""
        named = settings(job.engines.get("spark") or {}).application
        living = [application for application in wire.applications() if not named and _lives(application)]
        if named and _lives(named):
            return named
        if len(living) == 1:
            return living[0]
        which = (
            f"applications: {', '.join(living)}"
            if living
            else "in the application's driver, call trainmaster.spark.run(spark, job)"
        )
        trouble = f"there is no application {named} of yours here that takes jobs" if named else (
            f"{len(living)} Spark applications of yours take jobs here" if living else "no Spark application of yours takes jobs here"
        )  # fmt: skip
        raise BadInput(
            trouble, place=f"{PLACE}.application{f': {named}' if named else ''}", mend=which, anchor="spark-application"
        )

    def check(self, job: Any, requests: Sequence[Request]) -> None:
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
        return Store()

    def submit(self, submission: Submission) -> Submitted:
        job = submission.job
        options, application = settings(job.engines.get("spark") or {}), self.application(job)
        files = [("runtime", str(submission.runtime(())), True)]
        files += [(file.name, str(file.path), file.unpacked) for file in submission.files]
        token, secret = submission.secret["token"], submission.secret
        answer = self._ask(application, "submit", job=submission.job_id, token=token, files=files, pool=options.pool)
        environment = submission.site.get("environment")
        payload = {
            "job_id": submission.job_id, "token": token, "key": secret["key"], "secrets": secret["secrets"], "stores": secret["stores"],
            "certificate": submission.certificate, "address": answer["address"], "storage_of_agents": bool(job.storage),
            "variables": {"TRAINMASTER_PYTHON": f"{environment}/bin/python3"} if environment else {},
        }  # fmt: skip
        return Submitted(f"{application}/{submission.job_id}", {"link": answer["page"]}, master=payload)

    def find_jobs(self, prefix: str) -> dict[str, str]:
        applications: dict[str, str] = {}
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
        try:
            state = wire.ask(name, "state", job=job)
        except OSError:
            return "killed", OVER.format(name)
        return _STATES.get(state, ("unknown", f"the application {name} does not know it"))

    def end(self, application: str) -> None:
        name, _, job = application.partition("/")
        with contextlib.suppress(OSError):
            wire.ask(name, "end", job=job)

    def forget(self, job_id: str, application: str) -> None:
        """Do nothing: the application keeps nothing of a job that is over."""

    def _ask(self, application: str, verb: str, **arguments: Any) -> Any:
        try:
            return wire.ask(application, verb, **arguments)
        except OSError as error:
            raise EngineFailed(OVER.format(application), anchor="spark-application") from error


def _lives(application: str) -> bool:
    try:
        wire.connect(application).close()
    except OSError:
        return False
    return True
