"""The agent's side of one template: start it, fill it, fork it, end it. `inside.sitecustomize` is the other side, and has the protocol.

A fork of a template is the agent's own child, for its parent has ended. It waits for the order to be the program, and ends by itself where
the agent no longer holds its socket. One fork, the spare, is made ahead of its use: two forks of a process that has imported PyTorch take
some 90 ms. Template and spare are among the children that the agent starts for itself (`host.children`), so neither samples nor sweeps of a
program see them. Both die with the agent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Collection, Mapping, Sequence

import attrs

from trainmaster.agent.attempt.program import Command, Copy, Launch, fork
from trainmaster.agent.warm.store import wait_for_store
from trainmaster.host import children, linux

FORKED_WITHIN = 1.0  # s; a cold start is the better choice after that
FOUND_WITHIN = 60.0  # s in which a program's files are read
FILLED_WITHIN = 600.0  # s of imports, which give way to everything else on the machine
INSIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside")


class TemplateLost(Exception):
    """The template has ended, or does not answer."""


@attrs.frozen(slots=True, eq=False, repr=False)
class _Fork:
    """A fork that waits to be the program."""

    copy: Copy
    conversation: socket.socket


class Template:
    """One template that runs."""

    def __init__(self, copy: Copy, command: Command, environ: Mapping[str, str], control: socket.socket) -> None:
        """`environ`: the one that it was started with."""
        self._copy, self._command, self._control = copy, command, control
        self.environ = environ
        self._spare: _Fork | None = None
        self.pid = copy.pid
        copy.over.add_done_callback(lambda _: children.forget(copy.pid))

    @property
    def alive(self) -> bool:
        return not self._copy.over.done()

    async def find(self, form: str, target: str, folder: str, mapped: Sequence[str]) -> tuple[str, int, list[str]]:
        """Return why the program must start cold ("" for nothing), the number of its packages, and its import statements."""
        with await self._conversation(b"find") as conversation:
            await _write(conversation, [form, target, folder])
            await _write(conversation, mapped)
            reason, packages, *statements = await _read(conversation)
        return reason, int(packages), statements

    async def fill(
        self, statements: Sequence[str], withheld: Collection[str], room: int, is_summed: bool
    ) -> tuple[int, str] | None:
        """Have it do the imports, in `room` bytes (0: no limit). Return None, or the number of an import and what is wrong with it.

        `is_summed`: what it shares with other processes counts too.
        The number is -1 where no import is at fault. A template with which something is wrong is over.
        """
        with await self._conversation(b"fill") as conversation:
            await _write(conversation, statements)
            await _write(conversation, sorted(withheld))
            await _write(conversation, [str(room), str(int(is_summed))])
            trouble = await _read(conversation)
        return (int(trouble[0]), trouble[1]) if trouble else None

    async def make_spare(self) -> None:
        """Fork ahead of the next start, unless there is a fork that lives."""
        if self._spare is None or self._spare.copy.over.done():
            spare = await self._fork()
            self._drop_spare()  # one that was killed, or that was made meanwhile
            self._spare = spare

    async def start(
        self,
        launch: Launch,
        environ: Mapping[str, str],
        folder: str,
        descriptors: Sequence[int],
        store: str,
        address: str,
    ) -> Copy:
        """Start the program in a fork, once others may be met at `store`. Raises TemplateLost where that cannot be."""
        try:
            async with asyncio.timeout(FORKED_WITHIN):
                await self.make_spare()
                fork, self._spare = self._spare, None
                assert fork is not None
                with fork.conversation:
                    socket.send_fds(fork.conversation, [b"!"], list(descriptors))
                    variables = [f"{name}={value}" for name, value in environ.items()]
                    await _write(fork.conversation, [launch.cwd, folder, *variables])
                    if reason := await _read(fork.conversation):
                        raise TemplateLost(reason[0])
                    for act in launch.before:
                        act(fork.copy.pid)
                    if store:
                        await wait_for_store(store, address)
                    children.forget(fork.copy.pid)  # from now on a program's
                    await _write(fork.conversation, ["go"])
        except TimeoutError as error:
            raise TemplateLost(f"it does not fork within {FORKED_WITHIN:g} s") from error
        except OSError as error:
            raise TemplateLost(str(error)) from error
        return fork.copy

    async def _fork(self) -> _Fork:
        conversation = await self._conversation(b"fork")
        pid = 0
        try:
            await _write(conversation, [str(os.getpid())])
            pid = int((await _read(conversation))[0])
            children.PIDS.add(pid)  # before it is our own child: a sweep may list these at any moment
            await _write(conversation, ["known"])
            await _read(conversation)
            child = linux.look(pid)
            if child is None or child.parent != os.getpid():
                raise TemplateLost("its fork is not a child of the agent")
            copy = Copy(pid, self._command)
            copy.over.add_done_callback(lambda _: children.forget(pid))
            return _Fork(copy, conversation)
        except BaseException:
            children.forget(pid)
            conversation.close()
            raise

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.conversation.close()
            self._spare = None

    async def _conversation(self, word: bytes, *descriptors: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            try:
                socket.send_fds(self._control, [word], [theirs.fileno(), *descriptors])
            except OSError as error:
                ours.close()
                raise TemplateLost("it has ended") from error
        return ours

    async def end(self) -> None:
        """End it, and its spare. Programs that it has started go on."""
        self._control.close()
        ended = [self._copy] + ([self._spare.copy] if self._spare is not None else [])
        self._drop_spare()
        for copy in ended:
            if not copy.over.done():
                os.kill(copy.pid, signal.SIGKILL)  # our child, not waited for yet: the id is surely its
        await asyncio.wait([copy.over for copy in ended])


def start(launch: Launch, words: Sequence[str], withheld: Collection[str], title: str) -> Template:
    """Start a template of the launch. `words` run its Python program without a shell; `title` is the command line that others see."""
    environ = {name: value for name, value in launch.environ.items() if name not in withheld}
    environ["PYTHONPATH"] = f"{INSIDE}:{environ.get('PYTHONPATH', '')}"
    environ["TRAINMASTER_WARM_TITLE"] = title
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output = os.memfd_create("output")  # what imports print is looked at, and not shown
    try:
        with children.STARTING:
            pid, report = fork(
                attrs.evolve(launch, command=words, copies=(), before=()),
                environ,
                (theirs.fileno(), output, output),
            )
            children.PIDS.add(pid)
        os.close(report)  # where it cannot be executed, it ends
        ours.setblocking(False)
        return Template(Copy(pid, launch.command), launch.command, environ, ours)
    finally:
        theirs.close()
        os.close(output)


async def _write(conversation: socket.socket, parts: Sequence[str]) -> None:
    data = b"\0".join(map(os.fsencode, parts))
    try:
        await asyncio.get_running_loop().sock_sendall(conversation, len(data).to_bytes(4, "little") + data)
    except OSError as error:
        raise TemplateLost("it has ended") from error


async def _read(conversation: socket.socket) -> list[str]:
    size = int.from_bytes(await _exactly(conversation, 4), "little")
    data = await _exactly(conversation, size)
    return [os.fsdecode(part) for part in data.split(b"\0")] if data else []


async def _exactly(conversation: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            piece = await asyncio.get_running_loop().sock_recv(conversation, size - len(data))
        except OSError as error:
            raise TemplateLost("it has ended") from error
        if not piece:
            raise TemplateLost("it has ended")
        data += piece
    return data
