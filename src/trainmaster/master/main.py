"""One master's life: take an epoch, replay the log, open the engine, serve, turn until the job is over, and clear up.

A master reads `job.json` and `site.json` from the job's storage. The process that starts the master hands over the token, secrets, the
submitter's environment and allowance (see `launch`), perhaps with a user's wish to `kill` the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from trainmaster import __version__, garbage
from trainmaster.core.containers import Request
from trainmaster.core.decide.drive import Drive
from trainmaster.core.decide.plan import closed
from trainmaster.core.errors import BadInput, StorageFailed, TrainmasterError
from trainmaster.core.machine import snapshot
from trainmaster.core.machine.state import GRANTED, State
from trainmaster.core.machine.stimuli import (
    GivenUp,
    KillRequested,
    MasterStarted,
    SecretsLost,
    Stimulus,
    Submitted,
)
from trainmaster.core.spec.reading import job_from, job_to
from trainmaster.core.spec.redaction import ALL_ROLES, secret_names_of_others, secrets_of
from trainmaster.engines import registry
from trainmaster.engines.spec import spec_of
from trainmaster.host import linux
from trainmaster.host.places import boot_id
from trainmaster.lazy import lazily
from trainmaster.log import epochs, snapshots
from trainmaster.log.documents.files import parse
from trainmaster.log.documents.jobs import known_site, place_of, read_job, read_site
from trainmaster.log.reader import Reader
from trainmaster.log.replay import replayed
from trainmaster.log.storage import SILENT, Damaged, Storage, may_pass, remove_drafts, silent, storage_for
from trainmaster.log.writer import Writer, open_writer
from trainmaster.master import client_side
from trainmaster.master.hosts import ClosingHost, ContainerHost, LocalHost, MasterHost

FAILED = "master-failed"  # in the job's storage: the last words of the last master that failed
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_TIDYING = 10.0  # seconds that the end of the job waits for `_tidy`
_LEAVING = 30.0  # seconds that threads have to end, once the master's life is over
_AGAIN = 2.0  # seconds between two tries
_SETTLED, _LOOK = 120.0, 0.1  # s that closing what earlier masters hold open may take; and between two looks

T = TypeVar("T")
log = logging.getLogger(__name__)

lazily()  # before websockets, which is imported below where it is needed


def warm() -> None:
    """Import what a master needs before its first program starts: done while there is nothing else to do."""
    import trainmaster.engines.containers
    import trainmaster.master.connections.serve
    import trainmaster.master.shell
    import trainmaster.master.steps  # noqa: F401

    registry.engine(registry.DEFAULT).load("master_side")


def detach(storage: str, link: Any = None) -> None:
    """Leave the terminal: take no signal of it, keep no descriptor but `link`'s. Early errors go to `logs/master/start.log`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    folder = Path(storage) / "logs" / "master"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    null = os.open(os.devnull, os.O_RDWR)
    out = os.open(folder / "start.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, target in ((0, null), (1, out), (2, out)):
        os.dup2(target, descriptor)
    kept = 2 if link is None else link.socket.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, 4096)


def run_locally(storage: str, payload: Mapping[str, Any], link: Any) -> int:
    """Be the master of the job in the directory `storage` of this machine, with the template of its agents at `link`."""
    linux.set_name("tm-master")
    linux.set_title(f"tm: master {Path(storage).name}")
    return run(storage, payload, LocalHost(storage, payload, link))


def close_job(storage: str, payload: Mapping[str, Any]) -> int:
    """Bring the job in the directory `storage` to its end; no engine runs anything of it any more."""
    return run(storage, payload, ClosingHost(storage, payload, None))


def run_on_client(storage: str, payload: Mapping[str, Any]) -> int:
    """Be the master, on this machine, of a job whose agents are in containers of `payload["engine"]`: the only master while we live."""
    container = (
        registry.engine(payload["engine"]).load("container_side").client_side_master(payload["application"], payload)
    )
    with (Path(storage) / client_side.LOCK).open("w") as lock:
        if not client_side.lock_alone(lock):
            return 0
        os.environ.update(payload["stores"])
        linux.one_heap()
        return run(
            storage, payload, ContainerHost(container, Path(storage).name, payload["certificate"], payload["key"])
        )


def run(storage: str, payload: Mapping[str, Any], host: MasterHost) -> int:
    """Be the master of the job in `storage`, from `host`; return the exit status. Called in a process without threads or loop."""
    linux.raise_descriptor_limit()
    threads = set(threading.enumerate())
    leaving = threading.Timer(_LEAVING, os._exit, [1])

    async def live() -> int:
        try:
            return await _Life(storage, payload, host).live()
        finally:  # the loop's end waits for its threads, some of which may wait for a storage or a driver that does not answer
            leaving.daemon = True
            leaving.start()

    try:
        return asyncio.run(live())
    except TrainmasterError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.status
    finally:
        if all(
            thread.daemon for thread in set(threading.enumerate()) - threads
        ):  # else the end of Python waits for them
            leaving.cancel()


class _Life:
    def __init__(self, storage: str, payload: Mapping[str, Any], host: MasterHost) -> None:
        self.path, self.payload, self.host = storage, payload, host
        self.job_id = Path(storage).name
        self.site: dict[str, Any] = {"storage": storage, **known_site(storage)}
        self.job = job_from(read_job(storage))
        self.capabilities = registry.engine(self.site.get("engine") or registry.DEFAULT).capabilities
        self.storage_place = place_of(storage)
        self.storage: Storage = storage_for(self.storage_place)
        self.shell: Any = None

    async def live(self) -> int:
        self.epoch = await self._insist(lambda: epochs.take(self.storage))
        await self._require_private()
        self._log_to_directory()
        self.host.bind()
        tidying = asyncio.create_task(self._tidy())
        serving: asyncio.Task[None] | None = None
        try:
            state, reader = await self._read()
            if state.ended is not None and closed(state):
                self.host.leave()
                return 0
            writer = await self._insist(lambda: open_writer(self.storage, self.epoch, reader.last))
            self.boot = _boot(state.boot)
            self.shell = self._shell(Drive(state), writer)
            await self._begin(state, reader)
            self.engine.begin(self.epoch)
            await self.shell.turn()  # has asked for containers, or has left that to the engine, which may open late
            garbage.begin()
            # Serve no earlier: the first line of an epoch is its master's own.
            serving = asyncio.create_task(self._serve())
            await self.shell.run(serving)
            if self.storage_place != self.path:
                await asyncio.to_thread(self._note_end)
        except Exception as error:
            log.exception("the master ends")
            await asyncio.to_thread(self._leave_words, error)
            raise
        finally:
            await asyncio.wait([tidying], timeout=_TIDYING)
            tidying.cancel()
            if serving is not None:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
            await self.host.close()
            await self._close()
        return 0

    async def _require_private(self) -> None:
        """Raise BadInput where others may write what a master believes: the log, the listings, the addresses of the job's tasks."""
        if why := await self._insist(lambda: self.storage.other_writers(epochs.file(self.epoch))):
            raise BadInput(
                f"the job {self.job_id} is not taken up: {why}", place=self.storage.url,
                mend="chmod 700 it, if all that is in it is yours", anchor="foreign-job",
            )  # fmt: skip

    async def _serve(self) -> None:
        self.shell.agents.key = self.host.key
        await self.host.serve(self._application(), self.shell.feed)
        try:
            await self.host.serve_readers()
        except Exception:  # the job goes on
            log.exception("commands are not served")

    async def _insist(self, act: Callable[[], T]) -> T:
        """Call `act` in a thread, again and again while the storage is away, for `timeouts.storage` as a master that runs already waits."""
        since, limit, waits = time.monotonic(), self.job.timeouts.storage, False
        while True:
            try:
                return await self._answered(act, limit)
            except StorageFailed as failure:
                if not may_pass(failure) or (limit is not None and time.monotonic() - since >= limit):
                    raise
                if not waits:
                    log.warning("waits for its storage: %s", " ".join(str(failure).split()))
                waits = True
            await asyncio.sleep(_AGAIN)

    async def _answered(self, act: Callable[[], T], limit: float | None) -> T:
        """Call `act` in a thread. Raises StorageFailed where the storage does not answer within the limit."""
        calling = asyncio.ensure_future(asyncio.to_thread(act))
        if not (await asyncio.wait([calling], timeout=SILENT))[0]:
            log.warning("waits for its storage: it has not answered for %.0f s", SILENT)
            if not (await asyncio.wait([calling], timeout=limit))[0]:
                raise silent(self.storage.url, SILENT + (limit or 0))
        return calling.result()

    async def _read(self) -> tuple[State, Reader]:
        try:
            return await asyncio.to_thread(replayed, self.storage)
        except StorageFailed:  # the end of a file that a dead master holds open may not be readable yet
            with contextlib.suppress(StorageFailed):  # a master that cannot close the file may still read it
                await self._settle(_SETTLED)
            return await self._insist(lambda: replayed(self.storage))

    async def _tidy(self) -> None:
        """Do the work that nobody waits for. Write our addresses into the storage, for readers and for agents of earlier masters; copy the
        job to its log, where that is not in the job's directory, so that the storage alone is enough to read all; close earlier
        masters' files; remove the half-written files of killed writers.
        """
        await asyncio.to_thread(remove_drafts, self.path)
        await _surely(lambda: asyncio.to_thread(self._say_where), "our address is not in the storage yet")
        if self.storage_place != self.path:
            await _surely(lambda: asyncio.to_thread(self._put_beside), "the job is not stored with its log yet")
        await _surely(lambda: self._settle(_SETTLED), "what an earlier master holds open of the log is not closed yet")
        # An earlier master that was suspended while it wrote its addresses may have written them after us.
        await _surely(lambda: asyncio.to_thread(self._say_where), "our address may not be in the storage any more")

    def _say_where(self) -> None:
        record = epochs.MasterRecord(self.epoch, self.host.addresses, {"pid": os.getpid()})
        epochs.write_master(self.storage, record, self.payload["token"])

    async def _settle(self, within: float) -> None:
        """Have earlier masters' files closed. Raises StorageFailed where that takes longer than `within` seconds."""
        until = time.monotonic() + within
        while not await asyncio.to_thread(epochs.settle, self.storage, self.epoch):
            if time.monotonic() > until:
                raise StorageFailed(
                    f"the end of the event log is not readable yet, after {within:.0f} s", place=self.storage.url,
                    mend="see that the machines run that have it (on HDFS: hdfs fsck PATH -files -blocks -locations -openforwrite)",
                    anchor="storage-failed",
                )  # fmt: skip
            await asyncio.sleep(_LOOK)

    def _put_beside(self) -> None:
        for name in ("job.json", "site.json"):
            if self.epoch == 1 or not self.storage.exists(name):  # an earlier master may have died before it
                self.storage.replace(name, (Path(self.path) / name).read_bytes())

    def _log_to_directory(self) -> None:
        path = os.path.join(self.path, "logs", "master", f"{self.epoch}.log")
        logging.basicConfig(filename=path, level=logging.INFO, format=LOG_FORMAT, force=True)
        if isinstance(self.host, ContainerHost):  # what its engine shows of it
            aloud = logging.StreamHandler()
            aloud.setLevel(logging.WARNING)
            logging.getLogger().addHandler(aloud)
        logging.getLogger("websockets").setLevel(logging.ERROR)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)

    def _shell(self, drive: Drive, writer: Writer) -> Any:
        from trainmaster.engines.containers import Containers
        from trainmaster.master.orders import Orders
        from trainmaster.master.record import Record
        from trainmaster.master.shell import Shell
        from trainmaster.master.steps import StepRunner

        self.orders = Orders(self.job, self.site, self.storage_place)
        self.orders.near, self.orders.machine_cores = self.host.near, self.host.machine_cores
        lost = "killed-by-engine" if self.payload.get("afterwards") else "agent-lost"
        engine = self.host.engine(self.job, self._agent_spec)
        self.engine = Containers(engine, lambda: self._inherited, lost, self._engine_opened)
        self.orders.tasks_of_others = self.host.tasks_of_others
        self.record = Record(
            writer,
            lambda: epochs.confirm(self.storage, self.epoch),
            lambda detail: self.shell.trouble(detail),
            self.storage.url,
        )
        steps = StepRunner(
            self.job, self.orders, self.storage, self.engine, lambda: self.shell.state, self._program_environ
        )
        shell = Shell(
            drive,
            self.epoch,
            self.record,
            self.engine,
            self.storage,
            self.orders,
            steps.run,
            _clock(self.boot["at"]),
            self._keep,
        )
        shell.feed.agents_store = self.host.agent().get("storage") != ""
        if self.host.tokens is not None:
            shell.hold(self.host.tokens)
        return shell

    async def _keep(self, state: State) -> None:
        """Write a snapshot of `state`, so that a successor need not fold the whole log."""
        content = json.dumps(snapshot.dump(state)).encode()  # in the loop: nobody folds meanwhile
        try:
            await asyncio.to_thread(snapshots.write_snapshot, self.storage, state.n, self.epoch, __version__, content)
        except TrainmasterError as error:  # only a cache
            log.warning("no snapshot: %s", error.message)

    def _program_environ(self, role: str) -> dict[str, str]:
        """Return the variables of a role's programs, secrets too, as far as they are known where the master is."""
        from trainmaster.master.orders import env_of

        secrets = self.payload.get("secrets") or {}
        environ = {**(self.payload.get("environ") or os.environ), **secrets.get(ALL_ROLES, {})}
        if role:
            environ |= {**env_of(self.job.roles[role]), **secrets.get(role, {})}
        environment = self.site.get("environment") or ""
        if environment and os.path.isdir(environment):
            environ["PATH"] = f"{environment}/bin:{environ.get('PATH', os.defpath)}"
        return environ

    def _agent_spec(self, request: Request, devices: Sequence[str]) -> dict[str, Any]:
        """Return the spec of a container's agent."""
        secrets = self.payload.get("secrets") or {}
        spec = {
            **spec_of(self.job_id, self.job, self.site, self.storage_place, request, devices, self.capabilities),
            "token": self.payload["token"], "secrets": secrets_of(secrets, request.role), **self.host.agent(),
        }  # fmt: skip
        others = secret_names_of_others(secrets, request.role)
        # Programs that open object stores themselves may need what another role calls its secret (AWS_SECRET_ACCESS_KEY).
        if others and spec.get("environ") and not spec["programs_open_stores"]:
            spec["environ"] = {name: value for name, value in spec["environ"].items() if name not in others}
        return spec

    def _application(self) -> Any:
        from trainmaster.master.connections.serve import Application

        token = self.payload["token"]

        def rest() -> Any:
            from trainmaster.web.rest import rest

            return rest(self.shell.feed, self.shell, token)

        return Application(self.shell.agents, token, rest)

    async def _begin(self, state: State, reader: Reader) -> None:
        read = {str(epoch): n for epoch, n in reader.read.items()}
        self._inherited = {(task.key, task.serial) for task in state.tasks.values() if task.hold == GRANTED}
        before = await self._insist(self._last_words)
        first: list[Stimulus] = [MasterStarted(self.epoch, read, self.host.place, before, self.boot)]
        if not state.id:
            user, engine = self.site.get("user"), self.site.get("engine") or registry.DEFAULT
            first.append(Submitted(self.job_id, job_to(self.job), self.site.get("submitted"), user, engine))
        elif without := self.payload.get("without"):
            log.warning("programs go on without %s, which were set at submit and kept nowhere", ", ".join(without))
        if not self.payload.get("kill"):  # what the end needs, the log knows
            try:
                await self._read_files(state)
            except Damaged as damage:  # each master after us would find it so, too
                first.append(GivenUp("state-damaged", {"path": damage.place}))
        if self.payload.get("secrets") is None and self.site.get("secret_names"):
            first.append(SecretsLost())
        if kill := self.payload.get("kill"):
            given_up = kill.get("reason")
            killed = None if given_up else KillRequested(kill["by"], kill["why"], kill.get("as", "killed-by-user"))
            first.append(killed or GivenUp(given_up, kill["figures"]))
        self.shell.tell(*first)

    async def _read_files(self, state: State) -> None:
        """Read what the log does not repeat. Raises Damaged."""
        from trainmaster.master.steps import load_listings

        read_site(self.path)
        if state.id:
            self.orders.listings = await self._insist(lambda: load_listings(self.storage, self.job))

    async def _engine_opened(self) -> None:
        if any(role.retry_memory for role in self.job.roles.values()):
            self.orders.largest = max((node.memory for node in await self.engine.free()), default=None)

    def _leave_words(self, error: Exception) -> None:
        """Tell the next master why this one ends. It may be in another container, and knows nothing else of this one."""
        from trainmaster.master.record import Superseded

        if isinstance(error, Superseded):
            return
        words = {"epoch": self.epoch, "words": f"{type(error).__name__}: {error}"[:500]}
        try:
            self.storage.replace(FAILED, json.dumps(words).encode())
        except StorageFailed as failure:
            log.warning("the next master will not know why this one ends: %s", failure.message)

    def _last_words(self) -> str:
        """Return the last words of the master before this one; "" where it left none, as one that was killed."""
        if self.epoch == 1:
            return ""
        words: dict[str, Any] = {}
        with contextlib.suppress(Damaged):  # they are an extra
            words = parse(self.storage.read(FAILED) or b"{}", FAILED)
        if words.get("epoch") == self.epoch - 1:
            return str(words["words"])
        try:
            lines = (Path(self.path) / "logs" / "master" / "start.log").read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1][:500] if lines else ""

    def _note_end(self) -> None:
        """Keep the end in the job's directory, for lists of this machine while the storage cannot be read."""
        from trainmaster.core.machine.report import status
        from trainmaster.log.index import note_end

        note_end(self.path, status(self.shell.state))

    async def _close(self) -> None:
        if self.shell is None:  # it never came so far
            return
        try:
            await self.record.close()
        finally:
            if self.shell.over:  # else another master took over, or we failed: what runs is not ours to end
                self.host.leave()


async def _surely(act: Callable[[], Awaitable[None]], trouble: str) -> None:
    """Call `act` until it succeeds."""
    logged = ""
    while True:
        try:
            await act()
        except TrainmasterError as error:
            if error.message != logged:
                log.warning("%s: %s", trouble, error.message)
            logged = error.message
            await asyncio.sleep(_AGAIN)
        else:
            return


def _boot(known: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return when this machine was booted, in seconds since 1970: as the last master has it, where that ran here in the same boot. The wall
    clock may have jumped meanwhile, and the job's times go on as before.
    """
    boot = boot_id()
    at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return known if known is not None and known["id"] == boot else {"id": boot, "at": round(at, 6)}


def _clock(booted: float) -> Callable[[], float]:
    """Return a clock of seconds since 1970 that never fall or jump: the time of the boot, moved on by the time since."""
    return lambda: booted + time.clock_gettime(time.CLOCK_BOOTTIME)
