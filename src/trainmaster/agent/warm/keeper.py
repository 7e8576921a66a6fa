"""Keep one template for a container: make it while an attempt runs, use it for the next ones, drop it where it no longer fits.

A template is made once the running attempt has made progress, or has run for some seconds, and a core is idle. On a machine whose cores
are all used it is made once the attempt is old: a short training would lose more by its imports than by a death. One for a program that has
not run here yet does the imports that it surely does, and gives way to one that does more, once the program has shown those. It serves all
later attempts of the same command in the same directory and environment, without the variables that each attempt gets anew (`withheld`).
Where another variable has changed, the attempt starts cold and a new template is made meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from trainmaster.agent.attempt.program import Copy, Launch
from trainmaster.agent.warm import programs, template
from trainmaster.agent.warm.programs import PythonCommand
from trainmaster.agent.warm.template import Template, TemplateLost
from trainmaster.host.recipients import main_process

LOOKS = (3.0, 3.0, 6.0, 12.0, 24.0)  # s between looks at a program that has imported nothing of its libraries so far
SPARE_AFTER = 1.0  # s of an attempt's running until the next fork is made ahead, where no progress comes before
LOOK_EVERY = 0.2  # s, for its first progress
IDLE = 0.8  # cores that nobody uses, beside which a template's imports slow nobody down
IDLE_FOR = 1.0  # s
OLD = 180.0  # s of an attempt's running after which its template is made beside whatever runs
TRIES = 6  # templates, each without the import that spoiled the last one
LOST = 3  # templates that ended, or refused, after which no other is made
AGENT = 48 << 20  # bytes of `resources.overhead` that the agent needs itself
LEAST = 128 << 20  # bytes for a template; one load of a large library is not noticed before it is done
LEAST_SUMMED = 512 << 20  # the same where shared memory counts

log = logging.getLogger(__name__)


@attrs.frozen(slots=True, eq=False, repr=False)
class _Running:
    """An attempt that runs: its process, and `room`, the bytes that there are for a template (None: no limit).

    `is_summed`: each process of the container counts with all that it has resident, shared or not.
    """

    launch: Launch
    command: PythonCommand
    withheld: Collection[str]
    pid: int
    room: int | None
    is_summed: bool
    has_progress: Callable[[], bool]

    @property
    def left(self) -> int:
        """The bytes that a template may take beside the agent."""
        return 0 if self.room is None else max(0, self.room - AGENT)


@attrs.define(slots=True, eq=False, repr=False)
class Keeper:
    """The template of a container, if there is one, and why there is none."""

    _template: Template | None = None
    _launch: Launch | None = None  # that the template is of, without the variables that are withheld
    _folder: str = ""
    _statements: Sequence[str] = ()  # that the template was to import
    _is_guess: bool = False  # no program was seen to do these
    _why: str = ""  # there is none; "" where nobody expects one
    _making: asyncio.Task[None] | None = None
    _lost: int = 0
    _running: _Running | None = None  # the newest attempt

    async def start(
        self, launch: Launch, environ: Mapping[str, str], withheld: Collection[str], descriptors: Sequence[int], store: str = "",
        address: str = "",
    ) -> Copy | None:  # fmt: skip
        """Start a copy of the program in a fork of the template. Return None where it is to start cold.

        `store` is where the first program of its generation serves the others (see `warm.store`), `address` that of this container.
        """
        if self._template is not None:
            self._why = self._misfit(launch, withheld) or ("" if self._template.alive else "the template has ended")
        if self._template is None or self._why:
            if self._why:
                log.info("the program starts cold: %s", self._why)
            if self._template is not None and not self._template.alive:
                self._lost += 1
            await self._drop()
            return None
        try:
            copy = await self._template.start(launch, environ, self._folder, descriptors, store, address)
        except TemplateLost as error:
            self._lost, self._why = self._lost + 1, str(error)
            log.info("the program starts cold: %s", error)
            await self._drop()
            return None
        log.info("the program starts warm, as process %d", copy.pid)
        return copy

    def attend(
        self, launch: Launch, withheld: Collection[str], pid: int, room: int | None, is_summed: bool,
        has_progress: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Make what the next start needs while the program runs. `room`, `is_summed`: of `_Running`."""
        command = programs.python_command(launch.command)
        if command is None or self._lost >= LOST:
            return
        self._running = _Running(launch, command, withheld, pid, room, is_summed, has_progress)
        if self._making is None or self._making.done():
            is_needed = self._template is None or self._is_guess
            self._making = asyncio.ensure_future(self._make() if is_needed else self._make_spare())

    async def expect(self, launch: Launch, withheld: Collection[str], room: int | None, is_summed: bool) -> str:
        """Make a template for a program that has not run here. Return why there is none, "" where there is one."""
        command = programs.python_command(launch.command)
        if command is None:
            return "the command is not a plain Python program"
        if self._template is None:
            self._is_guess, self._why = True, ""
            expected = _Running(launch, command, withheld, 0, room, is_summed, lambda: True)
            try:
                if self._has_room(expected) and not await self._fill(expected, None) and not self._why:
                    self._why = "it imports no libraries"
            except (TemplateLost, TimeoutError, OSError) as error:
                self._why = str(error) or "its imports take too long"
        await self._fork_ahead(is_summed)
        return self._why if self._template is None else ""

    async def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)
        await self._drop()

    def _misfit(self, launch: Launch, withheld: Collection[str]) -> str:
        known = self._launch
        assert known is not None
        if (launch.command, launch.cwd, launch.allowance) != (known.command, known.cwd, known.allowance):
            return "the template is of another command"
        environ = _fixed(launch, withheld)
        names = {name for name in {*environ, *known.environ} if environ.get(name) != known.environ.get(name)}
        return f"{', '.join(sorted(names))} changed" if names else ""

    async def _drop(self) -> None:
        """End the template."""
        if self._template is not None:
            dropped, self._template = self._template, None
            await dropped.end()

    async def _make_spare(self) -> None:
        await self._wait(SPARE_AFTER)
        assert self._running is not None
        with contextlib.suppress(TemplateLost):
            await self._fork_ahead(self._running.is_summed)

    async def _fork_ahead(self, is_summed: bool) -> None:
        """Make the fork for the next start, unless it would count as a whole process until then."""
        if self._template is not None and not is_summed:
            await self._template.make_spare()

    async def _make(self) -> None:
        """Make a template, or note why there is none."""
        self._why = "the template is not ready yet"
        began = asyncio.get_running_loop().time()
        try:
            for pause in LOOKS:
                await self._wait(pause)
                await self._until_idle(began + OLD)
                if await self._try(self._running):
                    break
            assert self._running is not None
            await self._fork_ahead(self._running.is_summed)
        except (TemplateLost, TimeoutError, OSError) as error:
            self._why = f"no template can be made: {str(error) or 'its imports take too long'}"
        if self._why:
            log.info("there is no template for the next attempt: %s", self._why)

    async def _wait(self, limit: float) -> None:
        """Wait until the newest attempt has made progress, or for `limit` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._running is None or not self._running.has_progress():  # noqa: ASYNC110  it comes in many ways
                    await asyncio.sleep(LOOK_EVERY)

    async def _until_idle(self, latest: float) -> None:
        """Wait until a core is idle, for a second; not beyond the time `latest` of the loop."""
        from trainmaster.host.machine import IdleCores

        idle = IdleCores()
        while asyncio.get_running_loop().time() < latest:
            await asyncio.sleep(IDLE_FOR)
            if idle.since_last() >= IDLE:
                return

    async def _try(self, running: _Running | None) -> bool:
        """Make a template of what runs. Return False where a later look may find more."""
        assert running is not None
        if not self._has_room(running):
            return True
        pid = main_process(running.pid)
        # A fork of a template was born as that, of an interpreter that was looked at.
        self._why = (
            ""
            if self._template is not None
            else programs.oddity(pid, running.command, running.launch.environ, running.launch.cwd)
        )
        if self._why:
            return self._why != programs.ENDED
        return await self._fill(running, programs.mapped_files(pid))

    def _has_room(self, running: _Running) -> bool:
        least = LEAST_SUMMED if running.is_summed else LEAST
        if has_room := running.room is None or running.left >= least:
            return has_room
        self._why = f"resources.overhead leaves it {running.left >> 20} MiB; {least >> 20} MiB are the least"
        return False

    async def _fill(self, running: _Running, mapped: Sequence[str] | None) -> bool:
        """Start a template and have it import what the program does. Return False where there is nothing to import yet.

        `mapped`: the files that the program has mapped; None where it has not run, so that the interpreter itself is looked at here.
        """
        launch, command, withheld = running.launch, running.command, running.withheld
        spared = attrs.evolve(launch, environ=_fixed(launch, withheld))
        folder = command.folder(launch.cwd)
        title = "tm: warm {TRAINMASTER_ROLE}:{TRAINMASTER_INDEX} {TRAINMASTER_JOB}".format_map(launch.environ)
        # An interpreter that does not heed our code would run its program: so it first shows that it does, with one that does nothing.
        trial = template.start(spared, command.harmless, withheld, title)
        try:
            async with asyncio.timeout(template.FOUND_WITHIN):
                self._why, packages, statements = await trial.find(command.form, command.target, folder, mapped or ())
            if mapped is None and not self._why:
                self._why = programs.oddity(trial.pid, command, trial.environ, launch.cwd)
        finally:
            await trial.end()
        if self._why or not packages:
            return bool(self._why)
        if self._template is not None and tuple(statements) == self._statements:
            self._is_guess = False
            return True
        await self._drop()  # there may not be room for two
        all_statements = tuple(statements)
        for _ in range(TRIES):
            filled = template.start(spared, command.words, withheld, title)
            try:
                async with asyncio.timeout(template.FILLED_WITHIN):
                    trouble = await filled.fill(statements, withheld, running.left, running.is_summed)
                if trouble is None:
                    self._template, self._folder, self._launch = filled, folder, spared
                    self._statements, self._is_guess = all_statements, mapped is None
                    log.info("a template has done %d imports", len(statements))
                    return True
            finally:
                if self._template is not filled:
                    await filled.end()
            number, why = trouble
            if number < 0:
                self._why = why
                return True
            log.info("the template leaves out `%s`, which %s", statements.pop(number), why)
        self._why = "too many imports have side effects"
        return True


def _fixed(launch: Launch, withheld: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in launch.environ.items() if name not in withheld}
