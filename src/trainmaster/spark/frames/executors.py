"""Ask executors, before anything is fed, what their Python lacks: Spark's own errors say it late, and in words of its own.

One short job has a task for each slot, so that each executor answers as a rule; which one runs a task is Spark's to decide. An executor
that comes later and lacks something says so by its feeder's error.
"""

from __future__ import annotations

import re
import time
from typing import Any

from trainmaster.core.errors import BadInput
from trainmaster.engines.spark.bridge.bridge import holders_of_slots, slots_beside_jobs
from trainmaster.engines.spark.bridge.executors import is_local, more_slots
from trainmaster.spark import feeding

MOST = 256  # tasks of the job
SLOT_WITHIN = 10.0  # s for an executor to come, or to come back, that has a slot for feeders
# Spark writes the one as "(3, 11)", the other as "3.12".
_VERSIONS = re.compile(r"different version:? \(?(\d+)[., ]+(\d+)\)? than that in driver:? \(?(\d+)[., ]+(\d+)")
_PLACE = re.compile(r"\((\S+) executor (\w+)\)")
_lacks: dict[str, str] = {}  # of an application


class NoSlots(BadInput):
    """No task of Spark's can feed a job: tasks of jobs take all slots."""


def check_slots(context: Any, job: str) -> None:
    """Raise NoSlots where jobs keep all slots of the application, so that no task of Spark's could feed `job`. It names them."""
    end = time.monotonic() + SLOT_WITHIN
    while slots_beside_jobs(context) == 0:
        if time.monotonic() < end:
            time.sleep(0.1)
            continue
        holders = [(holder, f"{holder} ({state}): tm kill {holder}") for holder, state in holders_of_slots(context)]
        raise NoSlots(
            f"tasks of jobs take all slots of the application, and none is left for tasks that feed {job}", anchor="no-feed",
            place="held by " + ", ".join(f"this job, {words}" if holder == job else words for holder, words in holders),
            mend=f"end a job that is not needed, lower replicas, or {more_slots(context)}"
            + ("" if is_local(context) else "; of GPUs too, where each of Spark's tasks takes some"),
        )  # fmt: skip


def lacking(context: Any) -> str:
    """Return why executors cannot read batches of Arrow; "" where they can. Raises BadInput where their Python is of another version."""
    application = context.applicationId
    if application not in _lacks:
        count = min(max(context.defaultParallelism, 1), MOST)
        description = context.getLocalProperty("spark.job.description")
        context.setJobDescription("trainmaster asks what executors have")
        try:
            answers = context.parallelize(range(count), count).mapPartitions(feeding.lacks_arrow).collect()
        except Exception as error:
            if (ours := _translated(str(error))) is not None:
                raise ours from error
            raise
        finally:
            context.setLocalProperty("spark.job.description", description)
        _lacks[application] = min(filter(None, answers), default="")
    return _lacks[application]


def _translated(words: str) -> BadInput | None:
    """Return our error for Spark's of another Python; None for any other of its errors."""
    if (versions := _VERSIONS.search(words)) is None:
        return None
    theirs, ours = f"{versions[1]}.{versions[2]}", f"{versions[3]}.{versions[4]}"
    place = _PLACE.search(words)
    executor = f"executor {place[2]} on {place[1]}" if place else "an executor"
    return BadInput(
        f"{executor} runs Python {theirs}, and this driver Python {ours}: Spark needs the same minor version on both",
        place="PYSPARK_PYTHON", anchor="spark-executors",
        mend=f"set PYSPARK_PYTHON to a Python {ours} that executors have, or run the driver by a Python {theirs}",
    )  # fmt: skip
