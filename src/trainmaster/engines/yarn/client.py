"""YARN's submitting side: look at the cluster, submit a job, and tell what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from trainmaster import interrupts
from trainmaster.core.containers import Request
from trainmaster.core.errors import BadInput, EngineFailed, TrainmasterError
from trainmaster.core.machine.formation import bracketed
from trainmaster.core.spec.reading import job_to
from trainmaster.core.spec.redaction import is_secret
from trainmaster.engines.contract import Free, OnCluster, Queue, Submission, Submitted
from trainmaster.engines.yarn import ENGINE
from trainmaster.engines.yarn.master.asks import INT, label_of, resource
from trainmaster.engines.yarn.master.exits import given_up, line
from trainmaster.engines.yarn.master.waiting import amount, free, queues, unstarted
from trainmaster.engines.yarn.settings import PLACE, Settings, docker, settings
from trainmaster.engines.yarn.submit import fitting, lifetime
from trainmaster.engines.yarn.submit.launching import ARCHIVE, Resource, context
from trainmaster.engines.yarn.submit.store import RUNTIME, Store, fetches, user_of
from trainmaster.engines.yarn.tokens import fetch_tokens, hdfs_urls, submitted_tokens
from trainmaster.hadoop.conf import MEND, Configuration, is_secure, load, resource_managers, rpc_protection
from trainmaster.hadoop.errors import (
    AuthenticationFailed,
    ConfError,
    HadoopError,
    KdcUnreachable,
    RemoteError,
    WeakProtection,
)
from trainmaster.hadoop.proto import yarn_pb2 as y
from trainmaster.hadoop.security.auth import Auth, Kerberos, Simple
from trainmaster.hadoop.security.credentials import Credentials
from trainmaster.hadoop.yarn import ResourceManager, application_id, application_id_text

TYPE = "TRAINMASTER"
UNDONE = 10.0  # seconds for YARN to end an application whose submission was broken off
TAG = "trainmaster:"  # followed by a job's id: the tag by which an application is found
MASTER = "trainmaster.master.container:main"
_SENT = (
    "fs.defaultFS",
    "fs.viewfs.",
    "dfs.",
    "hadoop.security.",
    "hadoop.rpc.",
    "ipc.",
    "yarn.resourcemanager.",
    "yarn.acl.enable",
    "yarn.admin.acl",
    "yarn.application.classpath",  # this and the next ones are for Hadoop's formats
    "io.",
    "net.topology.",
)  # the part of the configuration that containers need
# Where an administrator has logs aggregated (`yarn logs`): the containers' own output, without the scripts that started them.
_AGGREGATED = y.LogAggregationContextProto(
    include_pattern=r"^(stdout|stderr|prelaunch\..*)$", rolled_logs_include_pattern=""
)
_ENDED = {y.FINISHED: "ended", y.FAILED: "failed", y.KILLED: "killed"}  # the words of `application_state`

T = TypeVar("T")


class YarnClient(OnCluster):
    """The client side of YARN."""

    def __init__(self, environ: Mapping[str, str] | None = None, folder: str = "") -> None:
        """Read the configuration in `folder`, else where HADOOP_CONF_DIR says."""
        environ = dict(os.environ if environ is None else environ)
        try:
            self.conf: Configuration = load(folder or None, environ)
            resource_managers(self.conf)
        except ConfError as error:
            raise _error_of(error) from error
        self._secure, self._environ = is_secure(self.conf), environ

    @functools.cached_property
    def user(self) -> str:
        """Return our user name on the cluster. Raises EngineFailed where the cluster asks for a ticket and there is none."""
        if not self._secure:
            return user_of(self._environ)
        from trainmaster.hadoop.security.gssapi import identity

        try:
            return identity(Kerberos()).short
        except HadoopError as error:
            raise _error_of(error) from error

    def _auth(self) -> Auth:
        return Kerberos() if self._secure else Simple(self.user)

    @property
    def place(self) -> str:
        """Return the addresses of the ResourceManagers, as text."""
        return ", ".join(f"{host}:{port}" for host, port in resource_managers(self.conf))

    @property
    def attempts(self) -> tuple[int, int]:
        """Return how many masters of a job the cluster allows, as far as our configuration says, and how many a job asks for."""
        try:
            most = self.conf.integer("yarn.resourcemanager.am.max-attempts", 2)
            return self.conf.integer("yarn.resourcemanager.am.global.max-attempts", most), Settings().attempts
        except ConfError as error:
            raise _error_of(error) from error

    # -- before --

    def check(self, job: Any, requests: Sequence[Request]) -> None:
        """Raise BadInput where a container is larger than the cluster ever grants, or where the queue takes no jobs or does not exist."""
        _answer_of(self._check(job, requests, settings(job.engines.get("yarn") or {})))

    async def _check(self, job: Any, requests: Sequence[Request], options: Settings) -> None:
        async with ResourceManager.of(self.conf, self._auth()) as manager:
            queue, new = await asyncio.gather(
                self._queue(manager, options.queue),
                manager.get_new_application(y.GetNewApplicationRequestProto()),
            )
            await fitting.check(manager, job, requests, queue, options.label, new.maximumCapability)
        fitting.check_tags(options.tags, self.conf)
        fitting.check_images(job, options)
        await asyncio.to_thread(self.store().check, job)
        await lifetime.check(self.conf, job, options, self.user)
        if queue.state == y.Q_STOPPED:
            raise BadInput(
                f"queue {options.queue} is stopped",
                place=f"{PLACE}.queue",
                mend="choose another: tm cluster show --engine yarn",
                anchor="queue",
            )

    async def _queue(self, manager: ResourceManager, name: str) -> y.QueueInfoProto:
        try:
            answer = await manager.get_queue_info(y.GetQueueInfoRequestProto(queueName=name, includeChildQueues=True))
        except RemoteError:
            answer = None
        if answer is None or not answer.HasField("queueInfo"):
            raise BadInput(
                f"there is no queue {name}",
                place=f"{PLACE}.queue: {name}",
                mend="see them all: tm cluster show --engine yarn",
                anchor="queue",
            )
        if answer.queueInfo.childQueues:
            children = ", ".join(child.queueName for child in answer.queueInfo.childQueues)
            raise BadInput(
                f"queue {name} takes no jobs, its queues do",
                place=f"{PLACE}.queue: {name}",
                mend=f"one of {children}",
                anchor="queue",
            )
        return answer.queueInfo

    def free(self) -> Sequence[Free]:
        """List the nodes, with what is free on each."""

        async def ask() -> Sequence[Free]:
            async with ResourceManager.of(self.conf, self._auth()) as manager:
                return await free(manager)

        return _answer_of(ask())

    def queues(self) -> Sequence[Queue]:
        """List the queues that take jobs."""

        async def ask() -> Sequence[Queue]:
            async with ResourceManager.of(self.conf, self._auth()) as manager:
                request = y.GetQueueInfoRequestProto(queueName="root", includeChildQueues=True, recursive=True)
                return queues((await manager.get_queue_info(request)).queueInfo)

        return _answer_of(ask())

    # -- submitting --

    def store(self, job: Any = None) -> Store:
        return Store(self.conf, self.user)

    def submit(self, submission: Submission) -> Submitted:
        """Start the job's master in a container."""
        options = settings(submission.job.engines.get("yarn") or {})
        applications: list[str] = []

        def undo() -> None:  # after a Ctrl-C that came when YARN had the application
            for application in applications:
                with contextlib.suppress(TrainmasterError):
                    self.end(application)

        work = self._submit(submission, options, applications)
        return _answer_of(work, lambda work: interrupts.run(work, undo))

    async def _submit(self, submission: Submission, options: Settings, applications: list[str]) -> Submitted:
        store = self.store()
        note = {
            "job": job_to(submission.job), "site": dict(submission.site), "token": submission.secret["token"],
            "certificate": submission.certificate,
        }  # fmt: skip
        noting = asyncio.create_task(asyncio.to_thread(store.keep, submission.job_id, note))
        shipping = asyncio.create_task(asyncio.to_thread(self._ship, store, submission))
        try:
            return await self._start_master(submission, options, noting, shipping, applications)
        except BaseException:
            store.stop.set()
            await asyncio.wait({noting, shipping}, timeout=UNDONE)
            for task in (noting, shipping):
                if task.done() and not task.cancelled():
                    task.exception()  # mark it as retrieved: the first failure is the one that is raised
            await asyncio.to_thread(store.forget, submission.job_id)
            raise

    async def _start_master(
        self, submission: Submission, options: Settings, noting: asyncio.Task[None], shipping: asyncio.Task[dict[str, Resource]],
        applications: list[str],
    ) -> Submitted:  # fmt: skip
        job_id, job, site = submission.job_id, submission.job, submission.site
        async with ResourceManager.of(self.conf, self._auth()) as manager:
            new = await manager.get_new_application(y.GetNewApplicationRequestProto())
            resources, tokens = await asyncio.shield(shipping), await self._tokens(job)
            try:
                secret = {**submission.secret, **await asyncio.to_thread(lifetime.keytab_of, options)}
                self._warn_of_readers(secret)
                application = application_id_text(new.application_id)
                environment = self._environment(site) | docker(job.environment.image, options)
                payload = {
                    "job_id": job_id, "job": job_to(job), "user": self.user,
                    "site": {**site, "application": application, "link": self.link(application)},
                    "certificate": submission.certificate, "configuration": self._configuration(), "environment": environment,
                    "of_roles": {role.name: docker(role.image, options) for role in job.roles.values() if role.image},
                    "resources": {name: attrs.asdict(file) for name, file in resources.items()},
                }  # fmt: skip
                launch_context = context(MASTER, payload, secret, resources, tokens, environment, options.view)
                await _hand_over(
                    manager, self._submission(new.application_id, job_id, job, options, launch_context), noting
                )
            except BaseException:
                await self._withdraw(tokens)
                raise
            applications.append(application)
            warnings = await _differences(manager, new.application_id, job, options)
        delegation = submitted_tokens(tokens)
        facts = {"conf": str(self.conf.folder), **({"tokens": delegation.times} if delegation else {})}
        return Submitted(application, facts, warnings=warnings)

    async def _tokens(self, job: Any) -> Credentials:
        """Fetch the tokens that containers on a secure cluster show instead of our ticket: for YARN, and for each HDFS of the job."""
        if not self._secure:
            return Credentials()
        from trainmaster.hadoop.security.delegation import fetch

        return await fetch(self.conf, Kerberos(), urls=hdfs_urls(job))

    async def _withdraw(self, tokens: Credentials) -> None:
        """Cancel the tokens of a submission that failed."""
        if self._secure:
            from trainmaster.hadoop.security.delegation import withdraw

            await withdraw(self.conf, Kerberos(), tokens)

    def _warn_of_readers(self, secret: Mapping[str, Any]) -> None:
        """Warn on stderr where others can read a job's secrets, or its token, on their way to its containers. Without Kerberos anyone
        may be anyone: the token alone is not worth a warning.
        """
        names = sorted({*secret["stores"], *(name for values in secret["secrets"].values() for name in values)})
        if set(rpc_protection(self.conf)) == {"privacy"} if self._secure else not names:
            return
        why = (
            f"hadoop.rpc.protection is {self.conf.get('hadoop.rpc.protection')}"
            if self._secure
            else "the cluster has no Kerberos"
        )
        exposed = (
            f"the secrets {', '.join(names)} and the job's own token and key" if names else "the job's token and key"
        )
        print(f"warning: {exposed} may cross the cluster's network unencrypted: {why}", file=sys.stderr, flush=True)

    def newer_tokens(self, job: Any) -> dict[str, Any]:
        """Fetch tokens for a running job, in the form that its master takes. Raises BadInput where the cluster has no tokens, or we have no
        ticket.
        """
        if not self._secure:
            raise BadInput("the cluster is not secure: its jobs have no tokens", place=self.place, anchor="tokens")
        return _answer_of(fetch_tokens(self.conf, Kerberos(), hdfs_urls(job))).to_json()

    def _environment(self, site: Mapping[str, Any]) -> dict[str, str]:
        """Return the variables of every container, the master's too. On a cluster without Kerberos containers run as a user of YARN's own,
        and are the submitter to HDFS by HADOOP_USER_NAME.
        """
        variables = {"TRAINMASTER_CONTAINER": ENGINE.container_side} | (
            {} if self._secure else {"HADOOP_USER_NAME": self.user}
        )
        if site.get("environment"):
            variables["TRAINMASTER_PYTHON"] = f"{site['environment']}/bin/python3"
        return variables

    def _configuration(self) -> dict[str, str]:
        """Return the part of the configuration that containers need, without secrets."""
        return {name: value for name, value in self.conf.resolved(*_SENT).items() if not is_secret(name)}

    @staticmethod
    def _ship(store: Store, submission: Submission) -> dict[str, Resource]:
        """Return the files that every container gets, by their names there."""
        archive = submission.runtime(())
        resources = {ARCHIVE: store.put(archive, RUNTIME, archive.name.partition(".")[0], unpacked=True)}
        for file in submission.files:
            if file.url:
                resources[file.name] = store.resource(file.url, file.name, file.unpacked, file.own)
            else:
                resources[file.name] = store.put(file.path, "files", unpacked=file.unpacked, own=file.own)
        return resources

    def fetches(self, url: str) -> bool:
        """Tell whether YARN itself brings this file of the cluster to containers."""
        return fetches(url)

    def _submission(
        self,
        application: y.ApplicationIdProto,
        job_id: str,
        job: Any,
        options: Settings,
        launch_context: y.ContainerLaunchContextProto,
    ) -> y.ApplicationSubmissionContextProto:
        size = job.master.resources
        return y.ApplicationSubmissionContextProto(
            application_id=application, application_name=job.name, queue=options.queue,
            priority=y.PriorityProto(priority=min(max(0, job.priority), INT)),
            am_container_spec=launch_context, maxAppAttempts=options.attempts,
            attempt_failures_validity_interval=round(options.validity * 1000),
            am_container_resource_request=[self._master_request(job, options)], node_label_expression=options.label or None,
            resource=resource(size.program_memory, size.cores), applicationType=TYPE, keep_containers_across_application_attempts=True,
            applicationTags=[f"{TAG}{job_id}", *options.tags], log_aggregation_context=_AGGREGATED,
        )  # fmt: skip

    def _master_request(self, job: Any, options: Settings) -> y.ResourceRequestProto:
        """Return the request for the master's own container."""
        size, label = job.master.resources, label_of(job.master.nodes.labels) or options.label
        return y.ResourceRequestProto(
            priority=y.PriorityProto(priority=0), resource_name="*", capability=resource(size.program_memory, size.cores), num_containers=1,
            node_label_expression=label or None,
        )  # fmt: skip

    # -- afterwards --

    def find_jobs(self, prefix: str) -> dict[str, str]:
        """Return our jobs that YARN remembers and that `prefix` may mean, the beginning of an id or an application: id -> application."""
        return _answer_of(self._find(prefix))

    async def _find(self, prefix: str) -> dict[str, str]:
        async with ResourceManager.of(self.conf, self._auth()) as manager:
            request = y.GetApplicationsRequestProto(application_types=[TYPE], users=[self.user])
            answer = await manager.get_applications(request)
        applications = {
            tag.removeprefix(TAG): application_id_text(report.applicationId)
            for report in answer.applications
            for tag in report.applicationTags
            if tag.startswith(TAG)
        }
        return {
            job: application
            for job, application in applications.items()
            if job.startswith(prefix) or application == prefix
        }

    def report(self, application: str) -> y.ApplicationReportProto:
        """Return YARN's report of an application. Raises EngineFailed where YARN has forgotten it or cannot be asked."""
        return _answer_of(self._report(application))

    async def _report(self, application: str) -> y.ApplicationReportProto:
        async with ResourceManager.of(self.conf, self._auth()) as manager:
            request = y.GetApplicationReportRequestProto(application_id=application_id(application))
            return (await manager.get_application_report(request)).application_report

    def application_state(self, application: str) -> tuple[str, str]:
        """Return `running` while YARN runs the application or will run it, else `ended`, `failed`, `killed`, or `unknown`; and YARN's
        reason.
        """
        try:
            report = self.report(application)
        except _Forgotten as error:
            return "unknown", error.message
        state = _ENDED.get(report.yarn_application_state, "running")
        return state, line(report.diagnostics) or f"the application is {state}"

    def link(self, application: str, job: Any = None) -> str:
        """Return the application's page on the first ResourceManager."""
        scheme, which = ("https", "webapp.https.address") if self._serves_https else ("http", "webapp.address")
        host, port = resource_managers(self.conf, which)[0]
        if host == "localhost":  # or written as 0.0.0.0: it listens on all its addresses
            host = resource_managers(self.conf)[0][0]
        return f"{scheme}://{bracketed(host)}:{port}/cluster/app/{application}"

    @property
    def _serves_https(self) -> bool:
        return (self.conf.get("yarn.http.policy") or "").upper() == "HTTPS_ONLY"

    def failure_reason(self, application: str) -> tuple[str, dict[str, Any]]:
        """Return why YARN starts no more masters of the application: the reason, and its figures."""
        return given_up(self.report(application).diagnostics)

    def waiting_reason(self, application: str, job: Any) -> str:
        """Describe what an application waits for while its master does not answer."""
        report = self.report(application)
        if (ended := _ENDED.get(report.yarn_application_state)) is not None:
            return f"YARN has {application} as {ended}{f': {why}' if (why := line(report.diagnostics)) else ''}"
        if report.yarn_application_state >= y.RUNNING:
            return f"YARN runs {application}, and its master does not answer yet"
        size = amount(job.master.resources.program_memory, job.master.resources.cores, 0)
        return f"YARN has not started its master: {unstarted(report.diagnostics, report.queue, size)}"

    def forget(self, job_id: str, application: str) -> None:
        """Remove the note by which other machines find the job. YARN itself forgets applications by their number."""
        self.store().remove(job_id)

    def caches(self) -> Sequence[tuple[str, int, float]]:
        """List the files that our jobs share on HDFS: URL, bytes, and when each was put there."""
        return self.store().caches()

    def clear(self, url: str) -> None:
        """Remove one of the files that `caches` lists."""
        self.store().clear(url)

    def end(self, application: str) -> None:
        """Have YARN kill the application, and wait until it has."""
        _answer_of(self._end(application))

    async def _end(self, application: str) -> None:
        async with ResourceManager.of(self.conf, self._auth()) as manager:
            await _kill(manager, application_id(application), "tm kill --force")


async def _hand_over(
    manager: ResourceManager, submission: y.ApplicationSubmissionContextProto, noting: asyncio.Task[None]
) -> None:
    """Submit the application. If the submitter is interrupted meanwhile, gets no answer, or cannot note the job, nothing is left running
    that nobody knows of.
    """
    if noting.done():
        noting.result()  # raise if another job has this id: a master would go on with that job's log
    request = y.SubmitApplicationRequestProto(application_submission_context=submission)
    asking = asyncio.create_task(manager.submit_application(request))
    try:
        await asyncio.shield(asking)
        await asyncio.shield(noting)
    except BaseException:
        with contextlib.suppress(HadoopError, TimeoutError):
            async with asyncio.timeout(UNDONE):
                await asyncio.wait({asking})  # an application that is not there yet cannot be ended
                await _kill(manager, submission.application_id, "its submission was broken off")
        raise


async def _differences(
    manager: ResourceManager, application: y.ApplicationIdProto, job: Any, options: Settings
) -> list[tuple[str, str]]:
    """Return a warning, (key, text), for the priority and the queue, where YARN gave the application another one than the job asks for."""
    try:
        answer = await manager.get_application_report(y.GetApplicationReportRequestProto(application_id=application))
    except HadoopError:
        return []
    report, warnings = answer.application_report, []
    if job.priority and report.priority.priority != job.priority:
        limit = "the highest that the cluster allows is its yarn.cluster.max-application-priority, 0 unless it is set"
        warnings.append(
            ("priority", f"YARN gives the job {report.priority.priority} instead of {job.priority}; {limit}")
        )
    if report.queue.rpartition(".")[2] != options.queue.rpartition(".")[2]:
        why = "the cluster maps users and groups to queues (yarn.scheduler.capacity.queue-mappings)"
        warnings.append(
            (f"{PLACE}.queue", f"YARN puts the job into the queue {report.queue} instead of {options.queue}; {why}")
        )
    return warnings


async def _kill(manager: ResourceManager, application: y.ApplicationIdProto, why: str) -> None:
    request = y.KillApplicationRequestProto(application_id=application, diagnostics=why)
    while not (await manager.force_kill_application(request)).is_kill_completed:  # noqa: ASYNC110  YARN sends no news of it
        await asyncio.sleep(0.1)


class _Forgotten(EngineFailed):
    """YARN knows nothing of the application."""


def _answer_of(question: Coroutine[Any, Any, T], run: Callable[[Coroutine[Any, Any, T]], T] = asyncio.run) -> T:
    """Return the answer to a question to the cluster. Here alone errors of Hadoop become ours."""
    try:
        return run(question)
    except TrainmasterError:
        raise
    except RemoteError as error:
        if error.name == "ApplicationNotFoundException":
            raise _Forgotten(str(error), anchor="yarn") from error
        raise EngineFailed(f"YARN refuses: {error}", mend="see the ResourceManager's log", anchor="yarn") from error
    except HadoopError as error:
        raise _error_of(error) from error


def _error_of(error: HadoopError) -> TrainmasterError:
    if isinstance(error, ConfError):
        suggestion = ", or try one here: tm cluster up hadoop" if MEND in error.mend else ""
        return BadInput(error.message, mend=error.mend + suggestion, anchor="hadoop-conf")
    if isinstance(error, WeakProtection):
        mend = "set hadoop.rpc.protection here as the cluster has it, if you trust its network"
        return BadInput(error.message, mend=mend, anchor="rpc-protection")
    if isinstance(error, AuthenticationFailed) and not isinstance(error, KdcUnreachable):
        return BadInput(error.message, mend="see your tickets: klist; get a new one: kinit", anchor="ticket")
    return EngineFailed(error.message, mend="check that it runs, and that it is the one that you mean", anchor="yarn")
