"""Run the agent of a container, from its spec to its end.

The spec is one JSON object. It comes as an argument where the agent is forked out of a warm template, else on stdin; it holds the job's
token and secrets, so it is never on a command line or in a file.

    job_id task serial            the container's task; `container` and `node` as the engine names them
    on_this_machine own_network memory_limit    the engine's abilities (`engines.contract.Capabilities`)
    socket | addresses            the master's place; with addresses `certificate` (PEM). `token`
    storage                       the job's storage, a path or URL; "": it is the master's alone
    directory                     the job's own on this machine (absent: the storage, where that is a path); `work`: the task's, `runtime`:
                                  the job's that dies with the boot; `sockets`: the same under a short name; `cache`: shared by jobs
    secrets                       {its role, or "" for every role: {name: value}}
    all_secrets                   the secrets of all roles, for the master's successor alone; on one machine, where any agent may start it
    environ                       of the submitter (absent: ours); `environment`: a directory with the Python of the programs, which is
                                  activated in it
    allowance                     limits, umask and signals of the submitter (`kernel.Allowance`; absent: ours)
    tokens                        of a secure cluster (`supervise.Tokens`; absent: there are none)
    master_pid                    of the master that begins us, where it is on this machine
    close_within                  s that the engine gives the agent after asking it to end
    stay                          s without a master in which the end of a program is kept for the next one (absent: `patience`); 0: no
                                  other master comes
    unmet                         s to wait for a master, where the container was begun before it (absent: the grace)
    log_end                       bytes of an attempt's log that are kept where no storage is reached and it ended well (absent: none)
    broken                        promises of the engine that the container breaks (`engines.promises`)
    devices, address, network, grace, log_limit, log_first, log_every, log_piece, cwd
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainmaster.agent.attempt.materials import Materials
from trainmaster.agent.attempt.place import Place
from trainmaster.agent.attempt.workplace import Workplace
from trainmaster.agent.input.stdin import record_path
from trainmaster.agent.link.channel import STAY, Link
from trainmaster.agent.link.programs import Credentials, Programs
from trainmaster.agent.output import shipping, spool
from trainmaster.agent.output.shipping import Shipping
from trainmaster.agent.output.tails import Tails
from trainmaster.agent.supervise import CLOSE_WITHIN, Agent
from trainmaster.engines.statuses import OUT_OF_REACH, TERMINATED
from trainmaster.host import linux
from trainmaster.host.allowance import Allowance
from trainmaster.log.storage import local_path

_STATUSES = {"grace": OUT_OF_REACH, "terminated": TERMINATED}  # why it ended -> exit status

log = logging.getLogger(__name__)


def run(spec: dict[str, Any]) -> int:
    """Be the agent until it is no longer needed, and return the exit status. The process must have no other thread and no loop."""
    allowance = Allowance.from_json(spec["allowance"]) if spec.get("allowance") else Allowance.present()
    linux.raise_descriptor_limit()
    linux.adopt_orphans()
    os.umask(allowance.umask)  # uploads get their user's permissions; our own files are made private one by one
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return asyncio.run(_serve(spec, allowance))


async def _serve(spec: Mapping[str, Any], allowance: Allowance) -> int:
    node = str(spec.get("node") or os.uname().nodename)
    agent = Agent(_link(spec), str(spec.get("container", "")), node, float(spec.get("close_within") or CLOSE_WITHIN))
    place = _place(spec, agent, allowance)
    _log_to(os.path.join(place.logs, "agent.log"))
    agent.settle(place, _log_transport(spec, agent, place))
    agent.tokens = spec.get("tokens")
    presence = None
    if spec.get("socket") and spec.get("on_this_machine"):
        try:
            presence = _stand_by(agent, spec, place, allowance)
        except BlockingIOError:  # started by a master that died before it heard of the start
            log.warning("container %s of %s has an agent already", spec["serial"], spec["task"])
            return 0
    elif not spec.get("socket") and spec["storage"]:
        agent.channel.find = lambda epoch: _newer_master(spec, epoch)
    _on_signal(signal.SIGTERM, agent.terminated)
    gc.freeze()  # objects loaded by now live as long as we do
    try:
        await agent.run()
    finally:
        if presence is not None:
            presence.close()
    return _STATUSES.get(agent.why, 0)


def _on_signal(number: int, act: Callable[[], None]) -> None:
    """Have the running loop call `act` on a signal. The loop's own method imports `inspect`, with `ast` and `dis`: 5 ms of a core."""
    loop = asyncio.get_running_loop()

    def handle(*_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed by now
            loop.call_soon_threadsafe(act)

    signal.signal(number, handle)


def _link(spec: Mapping[str, Any]) -> Link:
    return Link(
        spec["token"], float(spec.get("grace") or 30.0), str(spec.get("socket") or ""), tuple(spec.get("addresses") or ()),
        str(spec.get("certificate") or ""), float(spec.get("unmet") or 0.0),
        float(spec.get("stay", spec.get("patience") or STAY)),  # as long as a new master may wait for its storage
    )  # fmt: skip


def _place(spec: Mapping[str, Any], agent: Agent, allowance: Allowance) -> Place:
    name = spec["task"].replace(":", "-")
    runtime = spec["runtime"]
    directory = _directory(spec)
    work = spec.get("work") or (os.path.join(directory, "work", name) if directory else os.getcwd())
    private = os.path.join(runtime, f"{name}.d")
    # A socket's path must fit 107 bytes (unix(7)), and names of roles may be long: none of this is longer than the master's own.
    programs = Programs(
        os.path.join(spec.get("sockets") or runtime, f"{os.getpid():x}.sock"),
        agent.leasing.lease,
        send=agent.channel.ask,
    )
    place = Place(
        job=spec["job_id"], task=spec["task"], serial=int(spec["serial"]), on_this_machine=bool(spec.get("on_this_machine")),
        memory_limit=str(spec.get("memory_limit") or ""),
        logs=os.path.join(local_path(spec["storage"]) or directory or os.path.join(runtime, "spool"), "logs", name),
        workplace=Workplace(work, private, record_path(directory or "", spec["task"])), programs=programs, allowance=allowance,
        materials=Materials(spec["job_id"], spec["task"], private, _cache(spec)),
        environ=_environ(spec), environment=spec.get("environment") or "", secrets=dict(spec.get("secrets") or {}),
        report=agent.channel.report, send=agent.channel.ask, acknowledged=agent.channel.outbox.acknowledged, sample=agent.channel.sample,
        grown=agent.channel.wake, address=spec.get("address") or "127.0.0.1", network=str(spec.get("network") or ""),
        transport=str(spec.get("transport") or "auto"),
        devices=tuple(spec.get("devices") or ()), broken=tuple(spec.get("broken") or ()),
        log_limit=int(spec.get("log_limit") or spool.LIMIT),
        log_first=int(spec.get("log_first") or spool.HEAD),
        own_network=bool(spec.get("own_network")), grace=float(spec.get("grace") or 30.0),
        patience=math.inf if spec.get("patience") is None else float(spec["patience"]),
    )  # fmt: skip
    programs.credentials = Credentials(spec["token"], str(spec.get("certificate") or ""))
    programs.on_progress = agent.progressed
    programs.on_phase = agent.entered
    programs.on_checkpoint = agent.checkpointed
    programs.on_begun = agent.begun
    programs.on_counted = agent.counted
    programs.on_commit = agent.commit_part
    programs.on_state = agent.begin_state
    return place


def _environ(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment that programs begin with."""
    environ = dict(os.environ if spec.get("environ") is None else spec["environ"])
    if not spec.get("environment"):
        return environ
    from pathlib import Path

    from trainmaster.agent.attempt.activation import activate

    return activate(Path(spec["environment"]).absolute(), environ)


def _cache(spec: Mapping[str, Any]) -> str:
    """Return this machine's directory for files that jobs share: the engine's, else one next to the local engine's jobs."""
    if configured := spec.get("cache"):
        return str(configured)
    if directory := _directory(spec):
        return os.path.join(os.path.dirname(os.path.dirname(directory)), "cache")
    return os.path.join(os.getcwd(), ".cache")


def _log_transport(spec: Mapping[str, Any], agent: Agent, place: Place) -> Shipping | Tails | None:
    """Return how logs reach the place where they are kept; None where they are written there."""
    if not spec["storage"] and not spec.get("directory"):
        tails = Tails(agent.channel, int(spec.get("log_end") or 0))
        place.report = tails.report
        return tails
    if local_path(spec["storage"]) is not None:
        return None
    every, piece = float(spec.get("log_every") or shipping.EVERY), int(spec.get("log_piece") or shipping.PIECE)
    return Shipping(lambda: _storage(spec), spec["task"], every, piece)


def _stand_by(agent: Agent, spec: Mapping[str, Any], place: Place, allowance: Allowance) -> Any:
    """Be ready to start the master's successor."""
    from trainmaster.agent.link import successor

    presence = successor.Presence(os.path.join(spec["runtime"], "agents"), spec["task"], int(spec["serial"]))
    payload = {name: spec.get(name) for name in ("token", "environ", "cwd")} | {
        "secrets": spec.get("all_secrets"), "allowance": allowance.to_json(),
    }  # fmt: skip
    directory = _directory(spec) or ""

    def spawn() -> int:
        pid = successor.spawn(
            directory, payload, cwd=str(spec.get("cwd") or "/"),
            output=os.path.join(directory, "logs", "master", "start.log"), umask=allowance.umask,
        )  # fmt: skip
        successor.mark(spec["job_id"], pid)
        return pid

    starter = linux.look(spec["master_pid"]) if spec.get("master_pid") else None  # before its pid can be another's

    async def unreachable() -> None:
        master = agent.channel.master or starter
        if not successor.alive(master):
            await successor.succeed(spec["runtime"], presence, spec["socket"], spawn, lambda: agent.channel.master)

    agent.channel.unreachable = unreachable
    return presence


def _newer_master(spec: Mapping[str, Any], epoch: int) -> tuple[int, Sequence[str]] | None:
    """Return the epoch and addresses of a master newer than `epoch`, if there is one."""
    from trainmaster.log.epochs import newer_master

    record = newer_master(_storage(spec), spec["token"], epoch)
    return None if record is None else (record.epoch, record.addresses)


def _storage(spec: Mapping[str, Any]) -> Any:
    from trainmaster.log.storage import storage_for

    return storage_for(spec["storage"])


def _directory(spec: Mapping[str, Any]) -> str | None:
    return spec.get("directory") or local_path(spec["storage"])


def _log_to(path: str) -> None:
    """Write our own log, apart from the program's, to `path`."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        logging.basicConfig(
            filename=path, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
        )
    except OSError as error:  # a full disk must not keep the agent from its work
        logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
        log.warning("no log of our own: %s", error)
