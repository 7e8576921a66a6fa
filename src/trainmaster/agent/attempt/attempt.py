"""The life of one attempt: prepare, start, watch, end, upload, commit. Orders come in; reports go out.

    prepare -> ready -> start -> started -> ended -> uploading -> uploaded -> commit -> committed
                                    started -> died -> ended (not well)
                  any of them -> stop -> ended (stopped)

One asyncio task at a time (the work) carries the attempt on. An order `stop` cancels the work and reports `ended`; but once the program has
started, `stop` ends only the program, and the work does the rest. `died` is reported before `ended` where a signal ended the program, and
where the last set of a checkpoint is stored between the two: the failure and its time are known at once, and peers are stopped meanwhile;
the restart begins after `ended`, from that set. An attempt ends once: after its first `ended` that is not well, nothing more is reported of
it. No end is reported of an attempt that ends because the engine takes its container back: the engine itself says why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from trainmaster.agent.attempt import diagnosis, faults
from trainmaster.agent.attempt import program as programs_of
from trainmaster.agent.attempt.checkpointing import Checkpointing, restore
from trainmaster.agent.attempt.course import Course
from trainmaster.agent.attempt.environ import environ, filled
from trainmaster.agent.attempt.failure import AttemptFailed, failed, words
from trainmaster.agent.attempt.parts import Parts
from trainmaster.agent.attempt.place import Place
from trainmaster.agent.attempt.program import CannotStart, Copy, Launch, Outcome, Program
from trainmaster.agent.attempt.storage_retry import retrying_storage
from trainmaster.agent.attempt.threads import answered_within
from trainmaster.agent.input.side_process import SideProcess
from trainmaster.agent.input.streaming import Records
from trainmaster.agent.output.capture import Output
from trainmaster.agent.output.spool import Spool, tail
from trainmaster.agent.watch.progress import Progress
from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.core.machine.phases import COMMITTING, DONE, EXITED, READY, RUNNING, STAGING, STARTING, UPLOADED
from trainmaster.core.machine.reasons import READ_STDIN
from trainmaster.core.spec.signals import signal_name, signal_number
from trainmaster.host.linux import Process

if TYPE_CHECKING:
    from trainmaster.agent.watch.watching import Watching

TAIL = 20  # lines of output in the report of an end
EARLY = 60.0  # s within which "address already in use" is blamed on a port that we chose
GRACE = 10.0  # s, where an order names none
SETTLED_WITHIN = 10.0  # s that a stopped attempt has to store its checkpoint and to report its end
ANSWERED_WITHIN = 2.0  # s that a disk has to answer: a mount that hangs never does
STACKS_WITHIN = 5.0  # s to read the stacks of a program that hangs: what it waits for may keep their reader waiting too
TEXTS = ("detail", "figures", "gave_up")  # fields of reports with words that a program may have written
COPIED_WITHIN = 5.0  # s in which threads must give up once their attempt is stopped

log = logging.getLogger(__name__)


class Attempt:
    """One attempt of this container's task. `place` holds what all its attempts have in common."""

    def __init__(self, number: int, place: Place) -> None:
        self.number, self.place = number, place
        self.course = Course(number)
        self.spool = Spool(place.log(number), place.log_limit, place.log_first)
        self.logged = False  # nothing more will be printed
        self._began = self._ran = time.monotonic()
        self._order: Mapping[str, Any] = {}
        self._start: Mapping[str, Any] = {}
        self._work: asyncio.Task[None] | None = None
        self._aside: set[asyncio.Task[None]] = set()
        self._program: Program | None = None
        self._ending: asyncio.Task[list[Process]] | None = None  # of the program, once it is asked to end or has ended
        self._output: Output | None = None
        self._watching: Watching | None = None
        self._over_at = 0.0  # when the last launch was over
        self._has_reported_death = False  # `died` was reported
        self._progress, self._halt = Progress(), threading.Event()  # the event halts threads that copy
        self._inputs: dict[str, str] = {}
        self._outputs: dict[str, dict[str, Any]] = {}
        self._uploaded: dict[str, Any] = {}
        self._checkpointing: Checkpointing | None = None
        self._errors = faults.ErrorFiles(place.redact)
        self._saves: dict[str, None] = {}
        self._signals: dict[int, str] = {}  # those that users sent -> the last user
        self._left_out: dict[str, Mapping[str, str]] = {}  # by output: paths already reported as not stored
        self._saving: asyncio.Lock = asyncio.Lock()
        self._parts: Parts | None = None
        self._job_ends = False  # it was stopped for that: nothing is committed any more
        self._drop = threading.Event()  # halts the upload of a part, which a stop lets go on

    @property
    def running(self) -> bool:
        return self._program is not None and self._program.running

    @property
    def is_finished(self) -> bool:
        return self.course.is_finished(self.running)

    @property
    def pids(self) -> list[int]:
        """Return the processes that the attempt itself waits for."""
        return [] if self._program is None else self._program.pids

    # -- orders --

    def prepare(self, order: Mapping[str, Any]) -> None:
        if self.course.enter(STAGING):
            self._order = order
            self._carry_on(self._prepare())

    def start(self, order: Mapping[str, Any]) -> None:
        if self.course.enter(STARTING):
            self._start = order
            self._carry_on(self._run())

    def commit(self, order: Mapping[str, Any]) -> None:
        if self.course.enter(COMMITTING):
            self._carry_on(self._commit(order))

    async def stop(
        self, number: int | None, grace: float | None, *, shows_stacks: bool = False, job_ends: bool = False
    ) -> None:
        """End the attempt in any phase. `ended` is reported when nothing of it runs any more.

        `shows_stacks`: its group hangs. `job_ends`: so nothing is committed any more.
        """
        if not self.course.stop(self.place.going, self._program is not None and self._program.died):
            return
        self._job_ends = job_ends
        self._halt.set()
        if self.running and shows_stacks:
            await self.dump()
        if self.running:
            await self._end_program(number, grace)
        if self.course.phase == RUNNING:
            return  # the work sees the program's end, and reports it
        await self._drop_work()
        if not await self.place.threads.idle(COPIED_WITHIN):
            log.error("a copy does not give up; the next attempt waits for it")
        await self._sweep()
        await self._finish(AttemptFailed("not-needed"))

    async def end(self, left: Callable[[], float] = lambda: SETTLED_WITHIN) -> None:
        """Stop it and have its end reported. Work that is unfinished after `left()` seconds is dropped."""
        await self.stop(None, None)
        if self._work is not None:
            await asyncio.wait([self._work], timeout=left())
        await self._drop_work()

    def save(self, name: str) -> None:
        if name not in self._saves and self.course.phase == RUNNING:
            self._saves[name] = None
            self._run_aside(self._save(name))

    def warn(self, seconds: float, why: str, number: int | None) -> None:
        """Tell the program that its container will be taken back; by a signal only where the job asks for one."""
        self.place.programs.warn(seconds, why)
        if number is not None and self.running and self._program is not None:
            self._report_unsent("stop.warn", number, self._program.warn(number))

    def signal(self, number: int, by: str) -> None:
        """Send a user's signal to the program."""
        if self.running and self._program is not None:
            self._signals[number] = by
            self._report_unsent("signal", number, self._program.signal(number))

    def _report_unsent(self, subject: str, number: int, why: str) -> None:
        if why:
            self._report("warned", what=subject, detail=f"{signal_name(number)} was not sent: {why}")

    def peer_finished(self, limit: float | None) -> None:
        if self._watching is not None and self._watching.finishing is None:
            self._watching.finishing = (asyncio.get_running_loop().time(), limit)

    async def dump(self) -> None:
        """Write the stacks of every process into the log."""
        if self._watching is None or self._output is None:
            return
        lines: list[str] = []
        is_complete = await answered_within(STACKS_WITHIN, self._watching.show_stacks, lines.append)
        for line in [
            *lines,
            *([] if is_complete else [f"(what other processes do was not read within {STACKS_WITHIN:g} s)"]),
        ]:
            self._output.write(self.place.redact(line))  # command lines of processes too

    # -- messages of the program --

    def progressed(self, value: float | None, step: int | None, metrics: Mapping[str, Any]) -> None:
        self._progress.reached(value, step)
        self._progress.measured(metrics)  # all of them, since a report may replace one that was not sent yet
        fields = {"value": self._progress.value, "step": self._progress.step, "metrics": dict(self._progress.metrics)}
        self._report("progress", **{name: field for name, field in fields.items() if field not in (None, {})})

    def entered(self, phase: str | None) -> None:
        self._progress.phase = phase or ""  # reported with the samples

    def checkpointed(self, state: str, marks: Mapping[str, Any]) -> None:
        if self._checkpointing is not None:
            self._checkpointing.note_state(state, marks)

    async def commit_part(self) -> str:
        """Commit what the program has made so far. Return why it could not be, "" where it was."""
        return "its program has not started" if self._parts is None else await self._parts.commit()

    def read_shards(self) -> None:
        """Count shards reported as done: a kind of progress."""
        self._progress.progress += 1

    # -- the course of the attempt --

    def _carry_on(self, work: Awaitable[None]) -> None:
        self._work = asyncio.ensure_future(self._guarded(work))

    async def _guarded(self, work: Awaitable[None]) -> None:
        """Turn any unforeseen end of the work into an end of the attempt, with a reason."""
        try:
            await work
        except AttemptFailed as failure:
            await self._give_up(failure)
        except CannotStart as trouble:
            outcome = trouble.outcome
            await self._give_up(AttemptFailed(outcome.reason, {"status": outcome.status, **outcome.figures}))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("attempt %d failed in our own code", self.number)
            await self._give_up(failed("agent-lost", error))

    async def fail(self, fault: Exception) -> None:
        """End the attempt, where it is not over, because of a fault of ours."""
        log.error("attempt %d fails: %s", self.number, fault)
        if not (self.course.is_over or self.course.is_stopped):
            await self._drop_work()
            await self._give_up(failed("agent-lost", fault))

    async def _give_up(self, failure: AttemptFailed) -> None:
        self._halt.set()
        self._drop.set()
        await self._sweep()
        await self._finish(failure)

    async def _prepare(self) -> None:
        order, site = self._order, self.place.workplace
        await self.place.threads.idle()
        self._check_promises()
        if site.stdin.was_read():
            raise AttemptFailed("stdin-gone")
        # Records printed to stdout are kept in the task's own directory, because the programs' directory may be shared.
        folders = {"stream": site.work, "upload": ""}
        self._outputs = {
            name: {**output, "local": os.path.join(folders[output["as"]], output["local"])}
            for name, output in order["outputs"].items()
        }
        await self._thread("staging-failed", self.place.settle_address)
        await self._thread("staging-failed", self.place.settle_environment)
        if self._outputs:
            await self._thread("upload-failed", self.place.materials.require_places, self._outputs, self._halt)
        await self._thread("staging-failed", site.furnish, order)
        if materials := {key: order[key] for key in ("archives", "cache") if order[key]}:
            await self._thread("staging-failed", self.place.materials.provide, materials, site.cwd)
        if order["inputs"]:
            stage = self.place.materials.stage
            self._inputs = await self._thread(
                "staging-failed",
                stage,
                order["inputs"],
                site.cwd,
                site.shared,
                self._progress_reporter("staging"),
                self._halt,
            )
        ports = await self._thread("staging-failed", site.reserve, order["ports"]) if order["ports"] else {}
        if order["prepare"] and not self.place.prepared:
            await self._prepare_command(order)
        restored = None
        if checkpoint := order["checkpoint"]:
            restored = await self._thread(
                "restore-failed", restore, checkpoint, site.cwd, self._progress_reporter("staging"), self._halt
            )
            for fault in (restored or {}).pop("faults", ()):
                self._report("warned", what="checkpoint", detail=fault)
        self.course.enter(READY)
        programs = self.place.programs
        programs.credentials = programs.credentials._replace(address=self.place.address)
        facts = {"address": self.place.address, "ports": ports, "devices": len(self.place.devices)}
        if way := self.place.way.chosen():
            facts["network"] = way
        self._report("ready", **facts, **({"restored": restored} if restored else {}))

    def _check_promises(self) -> None:
        """Raise AttemptFailed for a promise that the container breaks and that programs rely on; report the others once."""
        if not self.place.broken:
            return
        from trainmaster.engines.promises import PROMISES

        broken = self.place.broken
        self.place.broken = [
            promise for promise in broken if PROMISES[promise[0]].ends
        ]  # the next attempt here ends too
        for name, detail in broken:
            promise = PROMISES[name]
            if promise.ends:
                raise AttemptFailed("promise-broken", {"detail": detail, "key": promise.key, "mend": promise.mend})
            self._report("warned", what=f"promise {name}", detail=f"{detail}; {promise.mend}")

    async def _prepare_command(self, order: Mapping[str, Any]) -> None:
        """Run the role's `prepare` command, once in each container."""
        environ = self._environ(order["env"])
        launch = Launch(order["prepare"], self.place.workplace.cwd, environ, self.place.allowance)
        outcome = await self._launch(launch, None, Records())
        if not outcome.well:
            status = outcome.status if outcome.signal is None else -outcome.signal
            raise AttemptFailed("prepare-failed", {"status": status})
        await self._thread("staging-failed", self.place.workplace.begun, order)
        self.place.prepared = True

    async def _run(self) -> None:
        order, site = self._start, self.place.workplace
        if order["files"]:
            await self._thread("staging-failed", site.write, order["files"], self.place.address)
        environ = self._environ(order["env"])
        copies = tuple(filled(self.place, copy) for copy in order["copies"] or [{}])
        copies = self._errors.variables(environ, copies, f"{site.private}/errors-{self.number}")
        environ |= await self._open_feeds(order["feeds"])
        launch = Launch(
            order["command"] if isinstance(order["command"], str) else tuple(order["command"]), site.cwd,
            environ, self.place.allowance, copies,
        )  # fmt: skip
        if (checkpoint := self._order["checkpoint"]) and checkpoint.get("every"):
            self._checkpointing = Checkpointing(
                checkpoint, self.place.workplace.cwd, self.place.task, self.number, self.place.programs.marks,
                lambda: [process.pid for process in self.place.processes()], self._report, self.place.acknowledged,
            )  # fmt: skip
            try:
                await self._checkpointing.begin()
            except BadInput as error:  # the path is a link that leads out of the directory
                raise failed("staging-failed", error) from error
        self._parts = Parts(self.place, order["parts"], self._outputs, len(copies), self._upload, self._report)
        self.place.programs.begin(self.number)
        outcome = await self._launch(launch, self._report_started, self._records(launch.environ))
        await self._after(outcome)

    def _records(self, environ: Mapping[str, str]) -> Records:
        """Return the records that are fed to the program, and kept from its stdout."""
        source = next((stream for stream in self._order["inputs"].values() if stream["as"] == "stream"), None)
        sink = next((stream for stream in self._outputs.values() if stream["as"] == "stream"), None)
        place, say = self.place, lambda line: self._output.write(line) if self._output else None
        side_process = SideProcess(environ, place.workplace.cwd, place.materials.private, self._halt, say)
        return Records(source, sink, side_process, self._progress.fed)

    async def _open_feeds(self, feeds: Mapping[str, tuple[int, str]]) -> dict[str, str]:
        """Make the rings of the role's feeds; return the variables that lead the program to them."""
        if not feeds:
            return {}
        if self.place.feeds is None:
            from trainmaster.agent.input.feeds import Feeds, Outside

            place = self.place
            outside = Outside(*place.feeders_outside) if place.feeders_outside else None
            place.feeds = Feeds(os.path.dirname(place.programs.path), place.send, place.report, place.task, outside)
        try:
            variables: dict[str, str] = await self.place.feeds.open(self.number, feeds, self.place.address)
        except TrainmasterError as error:
            raise failed("staging-failed", error) from error
        return variables

    def _close_feeds(self) -> None:
        if self.place.feeds is not None:
            self.place.feeds.close()

    def _report_started(self) -> None:
        assert self._program is not None
        self.course.enter(RUNNING)
        self._ran = time.monotonic()
        self._report("started", pid=self._program.pids[0])
        if self._checkpointing is not None:
            self._run_aside(self._checkpointing.run())
        if followed := {name: fields for name, fields in self._order["inputs"].items() if fields["as"] == "follow"}:
            from trainmaster.agent.input.following import follow

            self._run_aside(follow(followed, self.place, self._halt, self._report))

    async def _launch(self, launch: Launch, began: Callable[[], None] | None, records: Records) -> Outcome:
        """Run a launch to its end and collect its output. Nothing of it runs afterwards."""
        memory = self._start["memory"] if began else None
        self.course.launch()
        self._ending = None
        group = self.place.limit_memory(memory)
        if group is not None:
            launch = self.place.inside(launch, group)
        self._output = output = Output(
            self.spool, lambda value: self.progressed(value, None, {}), self.place.grown, records.stdout,
            secrets=self.place.secret_values,
            copies=[f"{self.place.task}.{n}" for n in range(len(launch.copies))] if len(launch.copies) > 1 else ("",),
        )  # fmt: skip
        stdin = self.place.workplace.stdin.open() if began and records.stdin is None else None
        try:
            warm = self._warm if began and self._start["warm"] else None
            self._program = await programs_of.start(
                launch, output.ends, records.stdin if stdin is None else stdin, warm
            )
        except BaseException:
            records.close()
            if group is not None:
                await asyncio.to_thread(group.remove)
            raise
        finally:
            output.started()
            records.forked()
        self.place.mark(self._program.pids)
        self.place.exceeded(None)  # forgets earlier kills
        if began:
            began()
            self._make_template(launch)
        try:
            return await self._watch(self._program, output, records, None if group is not None else memory, group)
        finally:
            if group is not None:
                await asyncio.to_thread(group.remove)

    # -- warm restarts --

    async def _warm(self, launch: Launch, environ: Mapping[str, str], descriptors: tuple[int, int, int]) -> Copy | None:
        """Start the program in a fork of the container's template, where an earlier attempt has left one."""
        if self.place.keeper is None:
            return None
        store, address = str(self._start["warm"].get("store", "")), self.place.address
        copy: Copy | None = await self.place.keeper.start(
            launch, environ, self._withheld(launch), descriptors, store, address
        )
        return copy

    def _make_template(self, launch: Launch) -> None:
        """Have a template made for the attempts that may follow, once this one has got anywhere."""
        if not self._start["warm"]:
            return
        if self.place.keeper is None:
            from trainmaster.agent.warm.keeper import Keeper  # while the program begins

            self.place.keeper = Keeper()
        assert self._program is not None
        launch = attrs.evolve(launch, environ={**launch.environ, **(launch.copies or ({},))[0]}, copies=())
        self.place.keeper.attend(
            launch, self._withheld(launch), self._program.pids[0], *self.place.template_room(self._start["warm"]),
            lambda: bool(self._progress.progress),
        )  # fmt: skip

    def _withheld(self, launch: Launch) -> set[str]:
        """Return the variables that may differ in the next attempt: those of its generation, and ours."""
        by_generation = {*self._start["env"], *(name for copy in self._start["copies"] for name in copy)} - {
            *self._order["env"]
        }
        return (
            by_generation | {faults.ERROR_FILE} | {name for name in launch.environ if name.startswith("TRAINMASTER_")}
        )

    async def _watch(
        self, program: Program, output: Output, records: Records, memory: int | None, group: Any
    ) -> Outcome:
        from trainmaster.agent.watch.watching import Limits, Watching  # while the program begins

        start = self._start
        limits = Limits(memory, start.get("stall"))
        self._watching = Watching(
            limits, self._progress, lambda: output.read + records.moved, self.place.sample,
            devices=self.place.devices, own_network=self.place.own_network,
        )  # fmt: skip
        ending = asyncio.ensure_future(program.wait())
        watching = asyncio.ensure_future(self._watching.run())
        records.begin()
        waiting: set[asyncio.Future[Any]] = {ending, watching, records.failing}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            self._over_at = time.monotonic()
            self.course.end_program()
            if ending.done():
                self._close_feeds()  # what the program read is reported before its death
            if records.failing.done():
                await self._end_program(None, None)
                outcome = Outcome("staging-failed")
            elif ending.done():
                outcome = diagnosis.signalled(ending.result(), output.last_words, self._signals)
                outcome = self._blame_memory(outcome, memory, group)
                if outcome.signal is not None:
                    self._report_death(AttemptFailed(outcome.reason, outcome.figures), outcome)
                await self._end_program(None, None)
                if program.answer is not None and not self.course.failed_alone(False):
                    outcome = program.answer
            else:
                outcome = await self._end_for(*watching.result())
            outcome = self._blame_memory(outcome, memory, group)
        finally:
            watching.cancel()
            ending.cancel()
        await output.drained()
        if (failure := await records.finish()) is not None:
            outcome = Outcome(failure.reason, outcome.status, outcome.signal, failure.figures)
        if self.spool.lost:
            reason = f": {self.spool.trouble}" if self.spool.trouble else ""
            detail = f"{self.spool.lost:,} bytes of its output could not be written{reason}"
            self._report("warned", what="log", bytes=self.spool.lost, detail=detail)
        return outcome

    def _blame_memory(self, outcome: Outcome, memory: int | None, group: Any) -> Outcome:
        """Return the end of a program that the kernel killed for its memory; any other as it is."""
        if outcome.well or (exceeded := self.place.exceeded(group, memory)) is None:
            return outcome
        return Outcome("out-of-memory", outcome.status, outcome.signal, exceeded)

    def _report_death(self, failure: AttemptFailed, outcome: Outcome) -> None:
        """Report, once, that the program failed by itself, before the rest of its end is done."""
        if self.course.phase == RUNNING and self.course.failed_alone(outcome.well) and not self._has_reported_death:
            self._has_reported_death = True
            self._report("died", **self._end_fields(failure, outcome))

    async def _end_for(self, reason: str, figures: dict[str, Any]) -> Outcome:
        """End the program for a reason that the watch found."""
        assert self._program is not None
        if reason == "out-of-memory":
            await self._program.sweep()
        else:
            await self.dump()
            await self._end_program(None, None)
        return Outcome(reason, figures=figures)

    async def _end_program(self, number: int | None, grace: float | None) -> None:
        """End the program, or what it left behind. Later calls wait for the first one, so that nothing is signalled twice."""
        assert self._program is not None
        if self._ending is None:
            stop = (self._start or self._order).get("stop") or {}
            number = number if number is not None else signal_number(stop.get("signal") or "SIGTERM")
            grace = grace if grace is not None else float(stop.get("grace", GRACE))
            end = self._program.stop(number, grace) if self._program.running else self._program.tidy()
            self._ending = asyncio.ensure_future(end)
        await asyncio.wait([self._ending])
        if not self._ending.cancelled() and (survivors := self._ending.result()):
            log.error("processes that even SIGKILL does not end: %s", ", ".join(f"{p.pid} {p.name}" for p in survivors))

    async def _after(self, outcome: Outcome) -> None:
        """Go on once the program has ended and its output is complete."""
        by_itself = self.course.failed_alone(outcome.well)
        failure = await self._diagnose(outcome) if by_itself else AttemptFailed(outcome.reason, outcome.figures)
        if self._checkpointing is not None:
            self._report_death(failure, outcome)
            await self._checkpointing.last(outcome.signal is None and outcome.reason == "exit")
        await self._end_aside()
        self._close_feeds()
        if outcome.well and self.course.is_stopped and not self._job_ends and self._parts is not None:
            await self._parts.commit_last()
        await self.place.end_programs(self.course.is_stopped)
        if not outcome.well or not self.course.enter(EXITED):
            await self._finish(failure, outcome)
            return
        self._end_log()
        await self._report_end(AttemptFailed("exit", {"status": 0}), outcome)
        if self._outputs:
            self._uploaded = await self._upload(0, {} if self._parts is None else self._parts.kept)
            self.course.enter(UPLOADED)
            self._report("uploaded", outputs=self._uploaded)
        else:
            self.course.enter(UPLOADED)  # nothing to commit; until its group has ended too, it may still be taken back

    async def _upload(self, part: int, kept: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Upload the outputs, or with a number their next part, without the files that parts have `kept`."""
        cwd, tell = self.place.workplace.cwd, self._progress_reporter("uploading")
        halt = self._drop if part else self._halt
        arguments = (self._outputs, cwd, self.number, kept, tell, halt, part)
        uploaded: dict[str, dict[str, Any]] = await self._thread(
            "upload-failed", self.place.materials.upload, *arguments, halt=halt
        )
        for name, report in uploaded.items():
            self._warn_left_out(name, report.pop("left_out", {}))
        return uploaded

    async def _commit(self, order: Mapping[str, Any]) -> None:
        outputs = order["outputs"] or self._outputs
        parts = {} if self._parts is None else self._parts.uploaded
        commit = self.place.materials.commit
        done = await self._thread("commit-failed", commit, outputs, self._uploaded, self.number, parts)
        self.course.enter(DONE)
        self._report("committed", outputs=done)

    async def _diagnose(self, outcome: Outcome) -> AttemptFailed:
        """Return the true cause of a bad end."""
        if outcome.reason != "exit":
            return AttemptFailed(outcome.reason, outcome.figures)
        if why := await answered_within(ANSWERED_WITHIN, self._errors.why_lasting):
            return AttemptFailed("cannot-go-on", {"detail": why, **outcome.figures})
        last = "\n".join(await self._last_lines())
        site, failure = self.place.workplace, None
        if self._over_at - self._ran < EARLY and site.ports and not self.place.blamed_port:
            failure = diagnosis.port_in_use(outcome, last)
            self.place.blamed_port = failure is not None  # once: a second time it is the program's own fault
        if failure is None:
            free = await answered_within(ANSWERED_WITHIN, diagnosis.free_bytes, site.cwd)
            failure = diagnosis.disk_full(outcome, last, free)
        return failure or AttemptFailed(outcome.reason, outcome.figures)

    # -- alongside the program --

    async def _save(self, name: str) -> None:
        async with self._saving:
            saved: dict[str, Any]
            try:
                save = self.place.materials.save
                saved = await self.place.threads.run(save, self._outputs, self.place.workplace.cwd, name, self._halt)
            except Exception as error:  # noqa: BLE001  the program goes on; the save's requester sees which task did not save
                log.warning("save %s failed: %s", name, error)
                saved = {"files": 0, "bytes": 0, "gave_up": words(error)}
        for output, paths in saved.pop("left_out", {}).items():
            self._warn_left_out(output, paths)
        self._report("saved", save=name, **saved)

    def _warn_left_out(self, output: str, left_out: Mapping[str, str]) -> None:
        """Report, once, the paths of an output that are not stored."""
        from trainmaster.data.store.trees import naming

        if left_out.keys() - self._left_out.get(output, {}).keys():
            self._left_out[output] = {**self._left_out.get(output, {}), **left_out}
            self._report("warned", what=f"output {output}", detail=f"not stored: {naming(left_out)}")

    def _run_aside(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    # -- the end --

    async def _finish(self, failure: AttemptFailed, outcome: Outcome | None = None) -> None:
        if not self.course.end():
            return
        self._halt.set()
        self._drop.set()
        self._close_feeds()
        await self.place.end_programs(self.course.is_stopped)
        self._end_log()
        await self._report_end(failure, outcome)

    async def _report_end(self, failure: AttemptFailed, outcome: Outcome | None) -> None:
        is_well = outcome is None or outcome.well
        looks = [self._last_lines(), *([] if is_well else [answered_within(ANSWERED_WITHIN, self._failure_lines)])]
        lines = next(filter(None, reversed(await asyncio.gather(*looks))), [])
        stop_fields = self.course.end_fields(None if outcome is None else outcome.well)
        if stop_fields is None:
            return
        fields = {**self._end_fields(failure, outcome), **stop_fields, "tail": lines}
        if self._watching is not None:
            fields["memory"] = self._watching.highest
        if self._program is not None and self._program.failed_copy is not None:
            fields["copy"] = self._program.failed_copy
        self._report("ended", **fields)

    def _end_fields(self, failure: AttemptFailed, outcome: Outcome | None) -> dict[str, Any]:
        """Return the fields of an end. A program's elapsed time counts to its own end, which separates causes from consequences."""
        fields: dict[str, Any] = {"reason": failure.reason, "figures": failure.figures}
        if self._progress.best:
            fields["reached"] = dict(self._progress.best)
        if outcome is not None:
            fields |= {"status": outcome.status, "signal": outcome.signal, "elapsed": self._elapsed(self._over_at)}
            if self.place.workplace.stdin.was_read() and self.course.failed_alone(outcome.well):
                fields["figures"] = {**failure.figures, READ_STDIN: True}
        return fields

    async def _last_lines(self) -> list[str]:
        lines = await answered_within(ANSWERED_WITHIN, tail, self.spool.path, TAIL) or []
        return self._redacted_lines(lines)

    def _failure_lines(self) -> list[str]:
        """Return the lines in which the program itself described its failure. Blocks."""
        return self._redacted_lines(self._errors.lines(TAIL) or faults.lines(self.spool.path, TAIL))

    def _redacted_lines(self, lines: list[str]) -> list[str]:
        """Redact lines together: a secret may have several."""
        return str(self.place.redact("\n".join(lines))).split("\n") if lines else []

    def _end_log(self) -> None:
        if not self.logged:
            self.logged = True  # the thread that writes the log closes the file, once the disk answers
            self.place.grown()

    async def _drop_work(self) -> None:
        """Cancel the work, but not from within itself."""
        if self._work is not None and self._work is not asyncio.current_task():
            self._work.cancel()
            await asyncio.wait([self._work])
        await self._end_aside()

    async def _end_aside(self) -> None:
        """End the tasks that run alongside the program."""
        if self._checkpointing is not None:
            self._checkpointing.halt()
        aside = list(self._aside)
        for task in aside:
            task.cancel()
        await asyncio.gather(*aside, return_exceptions=True)

    async def _sweep(self) -> None:
        """End the running program, and complete its output."""
        if self._ending is not None:
            self._ending.cancel()
            await asyncio.wait([self._ending])
        if self._program is not None:
            await self._program.sweep()
        if self._output is not None and not self._output.closed:
            await self._output.drained()

    # -- small --

    def _report(self, kind: str, **fields: Any) -> None:
        fields |= {name: self.place.redact(fields[name]) for name in TEXTS if name in fields}
        self.place.report(kind, self.number, **{"elapsed": self._elapsed(time.monotonic()), **fields})

    def _elapsed(self, at: float) -> float:
        return round(at - self._began, 3)

    def _progress_reporter(self, kind: str) -> Callable[[int, int], None]:
        """Return a function that reports progress and that threads may call."""
        loop = asyncio.get_running_loop()

        def count(done: int, total: int) -> None:
            loop.call_soon_threadsafe(lambda: self._report(kind, done=done, total=total))

        return count

    async def _thread(
        self, reason: str, act: Callable[..., Any], *arguments: Any, halt: threading.Event | None = None
    ) -> Any:
        """Do blocking work in a thread, also on a storage that is away for a while; where the attempt is stopped, or `halt` is set, no
        longer. An exception becomes a failure with `reason`.
        """
        try:
            return await retrying_storage(self.place, halt or self._halt, self._report, act, arguments)
        except AttemptFailed:
            raise
        except Exception as error:
            raise failed(reason, error) from error

    def _environ(self, env: Mapping[str, str]) -> dict[str, str]:
        return environ(
            self.place, self.number, env, self._start.get("defaults") or {}, self._inputs, self._outputs, self._start.get("threads"),
            self._order["checkpoint"], self._start.get("memory"),
        )  # fmt: skip
