"""Applications of Spark whose driver is on a node of YARN: find one by its job, ask what became of it, and end it.

YARN knows it by a tag with the job's id. Such an application is written `application_N_N@cluster`, since no bridge of this machine is its.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

from trainmaster.core.errors import EngineFailed
from trainmaster.engines.spark.wire import ON_NODE
from trainmaster.hadoop.conf import Configuration, is_secure, load
from trainmaster.hadoop.errors import HadoopError
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.auth import Kerberos, Simple
from trainmaster.hadoop.yarn import ResourceManager, application_id, application_id_text
from trainmaster.host.machine import login_name

TAG = "trainmaster-spark:"  # followed by the job's id
_TYPE = "SPARK"
# An application has one driver, with the job's master: where YARN has it as failed, that was killed, or died.
_STATES = {y.FINISHED: "ended", y.FAILED: "killed", y.KILLED: "killed"}
_NOISE = re.compile(r"Failing this attempt\.\s*Diagnostics: |\[\d{4}-\d\d-\d\d [\d:.]+\]|For more detailed output.*")
T = TypeVar("T")


def jobs() -> dict[str, str]:
    """Return the jobs that YARN remembers: id -> application. Raises EngineFailed where YARN does not answer."""

    async def look(manager: ResourceManager) -> dict[str, str]:
        answer = await manager.get_applications(
            y.GetApplicationsRequestProto(application_types=[_TYPE], users=[_user()])
        )
        return {
            tag.removeprefix(TAG): application_id_text(report.applicationId) + ON_NODE
            for report in answer.applications
            for tag in report.applicationTags
            if tag.startswith(TAG)
        }

    return _ask(look)


def state(application: str) -> tuple[str, str]:
    """Return `running`, `ended` or `killed`, and YARN's reason."""

    async def look(manager: ResourceManager) -> tuple[str, str]:
        report = (await manager.get_application_report(_request(application))).application_report
        word = _STATES.get(report.yarn_application_state, "running")
        return word, words_of(report.diagnostics) or f"YARN has the application as {word}"

    return _ask(look)


def words_of(diagnostics: str) -> str:
    """Return YARN's words on an application in one line."""
    return " ".join(_NOISE.sub("", " ".join(diagnostics.split())).split())[:500]


def end(application: str) -> None:
    """Have YARN kill an application, and wait until it has."""

    async def kill(manager: ResourceManager) -> None:
        request = y.KillApplicationRequestProto(
            application_id=_request(application).application_id, diagnostics="tm kill --force"
        )
        while not (await manager.force_kill_application(request)).is_kill_completed:  # noqa: ASYNC110  YARN sends no news of it
            await asyncio.sleep(0.1)

    with contextlib.suppress(EngineFailed):
        _ask(kill)


def end_job(job: str) -> None:
    """End the application of a job, where YARN has one."""
    with contextlib.suppress(EngineFailed):
        if application := jobs().get(job):
            end(application)


def _request(application: str) -> y.GetApplicationReportRequestProto:
    return y.GetApplicationReportRequestProto(application_id=application_id(application.removesuffix(ON_NODE)))


def _user() -> str:
    return os.environ.get("HADOOP_USER_NAME") or login_name()


def _ask(question: Callable[[ResourceManager], Awaitable[T]]) -> T:
    async def asked(conf: Configuration) -> T:
        async with ResourceManager.of(conf, Kerberos() if is_secure(conf) else Simple(_user())) as manager:
            return await question(manager)

    try:
        return asyncio.run(asked(load(None, dict(os.environ))))
    except HadoopError as error:
        raise EngineFailed(
            error.message, mend="check that it runs, and that HADOOP_CONF_DIR names it", anchor="yarn"
        ) from error
