"""Find the processes that read what others print, and whether they have read all of it: `python train.py | tee log`.

A reader at the end of its input ends by itself, once it has stored what it read. Where another process may still write into its pipe, the
input does not end: then the reader is done when the pipe is empty and it sleeps until there is more.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import stat
import termios
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from trainmaster.host.linux import Process

_WAITS_FOR_INPUT = ("pipe_read", "pipe_wait", "poll", "select")  # parts of names of the kernel's functions
Pipe = tuple[int, int]  # the device and the inode
_OUTPUT = ("1", "2")  # the descriptors of stdout and stderr


def readers(writers: Sequence[Process], processes: Sequence[Process]) -> list[Process]:
    """Return those of `processes` that read what one of `writers` prints, directly or through others. A writer may be one of them."""
    prints = {process.pid: printed_pipes(process.pid) for process in processes}
    reads = {process.pid: read_pipes(process.pid) for process in processes}
    sources = {writer.pid for writer in writers}
    reading: set[int] = set()
    while more := {
        pid
        for pid in reads.keys() - reading
        if any(prints.get(source, set()) & reads[pid].keys() for source in sources - {pid})
    }:
        reading |= more
        sources |= more
    return [process for process in processes if process.pid in reading]


def busy(reading: Collection[Process], processes: Iterable[Process]) -> list[Process]:
    """Return those of the readers `reading` that are not done. `processes`: all that may write into their pipes, as they are now."""
    living = {(process.pid, process.start): process for process in processes if process.alive}
    alive = [living[key] for process in reading if (key := (process.pid, process.start)) in living]
    reads = {process.pid: read_pipes(process.pid) for process in alive}
    writes = {process.pid: {pipe for pipe, _ in _pipes(process.pid, stat.S_IWUSR)} for process in living.values()}
    ending = set(reads)  # the readers whose input ends, since only such write into their pipes
    while stays := {
        pid for pid in ending if any(writes[other] & reads[pid].keys() for other in writes.keys() - ending)
    }:
        ending -= stays
    return [process for process in alive if process.pid in ending or not _is_done(process, reads[process.pid])]


def read_pipes(pid: int) -> Mapping[Pipe, str]:
    """Return the pipes that a process can read, named ones too, and the lowest descriptor of each."""
    return dict(sorted(_pipes(pid, stat.S_IRUSR), key=lambda pair: int(pair[1]), reverse=True))


def printed_pipes(pid: int) -> set[Pipe]:
    """Return the pipes that are a process's stdout or stderr."""
    return {pipe for pipe, descriptor in _pipes(pid, stat.S_IWUSR) if descriptor in _OUTPUT}


def _pipes(pid: int, mode: int) -> Iterator[tuple[Pipe, str]]:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder := f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.lstat(path := f"{folder}/{name}").st_mode & mode and stat.S_ISFIFO(
                    (pipe := os.stat(path)).st_mode
                ):
                    yield (pipe.st_dev, pipe.st_ino), name


def _is_done(process: Process, pipes: Mapping[Pipe, str]) -> bool:
    return (
        process.state == "S"
        and _sleeps_for_input(process.pid)
        and not any(_unread(process.pid, descriptor) for descriptor in pipes.values())
    )


def _sleeps_for_input(pid: int) -> bool:
    """Tell whether a process sleeps until it can read, by the kernel's function that it sleeps in; true where that is hidden from us."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan") as file:
        return (function := file.read()) == "0" or any(word in function for word in _WAITS_FOR_INPUT)
    return True


def _unread(pid: int, descriptor: str) -> int:
    """Return the number of bytes in the pipe that a process reads by this descriptor."""
    size = array.array("i", [0])
    with contextlib.suppress(OSError):
        pipe = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(pipe, termios.FIONREAD, size)
        finally:
            os.close(pipe)
    return size[0]
