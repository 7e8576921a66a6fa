"""Run jobs inside a Spark application, beside its other work.

    run = trainmaster.spark.run(spark, trainmaster.Job(roles={"worker": {"command": "python train.py", "replicas": 4}}))
    run.wait()

Each task of the job is a task of Spark's, on the application's executors. The job ends with the application.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster.client.api import Run
    from trainmaster.core.spec.job import Job


def run(
    spark: Any, job: Job | Mapping[str, Any], *, directory: str | Path | None = None, idempotency_key: str = ""
) -> Run:
    """Start a job in the application of a SparkSession or SparkContext; returns at once.

    Relative paths are those of `directory` (default: the present one), as for `trainmaster.submit`. Raises BadInput where `spark` is
    neither, as a session of Spark Connect, which has no context.
    """
    from trainmaster.client.api import check_job, start_job

    described = check_job(job, "spark")
    return start_job(in_application(open_to_jobs(spark), described), "spark", directory, idempotency_key)


def open_to_jobs(spark: Any) -> str:
    """Let this application take jobs that other processes of this user submit by `--engine spark`; returns its id. `run` does it too."""
    from trainmaster.engines.spark.bridge.bridge import bridge_of

    return bridge_of(context_of(spark)).application


def context_of(spark: Any) -> Any:
    """Return the SparkContext. Raises BadInput where there is none."""
    from trainmaster.core.errors import BadInput

    context = spark if hasattr(spark, "applicationId") else getattr(spark, "sparkContext", None)
    if context is None:
        if getattr(spark, "_jsc", spark) is None:
            raise BadInput("this SparkContext was stopped", mend="begin another one", anchor="spark-application")
        raise BadInput(
            f"{type(spark).__name__} is neither a SparkSession with a context of its own nor a SparkContext",
            mend="call it in the application's driver: a client of Spark Connect has no driver", anchor="spark-application",
        )  # fmt: skip
    return context


def in_application(application: str, job: Job) -> Job:
    """Return the job with the application that runs it."""
    import attrs

    return attrs.evolve(
        job, engines={**job.engines, "spark": {**(job.engines.get("spark") or {}), "application": application}}
    )
