"""Read the stacks of another Python process out of its memory, while it goes on undisturbed: nothing is put into it, and no signal is sent.

/proc/PID/mem may be read by a process of the same user that is its ancestor, as the agent is of its program (ptrace(2), Yama). There the
interpreter's own tables are followed: `_PyRuntime`, found by its symbol in the executable or in libpython (elf(5)), its interpreters, their
threads, and the frames of each. `LAYOUTS` has the offsets of their fields for each version (CPython's pycore_runtime.h, pycore_interp.h,
pycore_frame.h, cpython/code.h and unicodeobject.h, compiled for 64 bits; micro versions do not change them). Builds without the lock of
the interpreter have other offsets. The stacks of such a build, and of a version that is not in there, are not read. Memory may change while
it is read, and may lead anywhere: a thread is shown as far as its frames make sense, and every walk has an end.

The reader may wait as long as the process does: for a file of the interpreter on a disk that hangs, or for the lock of its memory.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO

import attrs

FRAMES, THREADS, INTERPRETERS = 100, 100, 100  # shown at most: of a thread, and of a process
_LONGEST = 4096  # bytes of a name
_DYNSYM, _EXECUTABLE = 11, 2  # elf.h: SHT_DYNSYM, ET_EXEC
_CSTACK = 3  # the owner of a frame that stands for C code, from 3.12 on
_COOKIE = b"xdebugpy"  # what _PyRuntime begins with, from 3.13 on
_FAULTS = (
    OSError,
    struct.error,
    ValueError,
    ArithmeticError,
    LookupError,
    MemoryError,
)  # of memory that holds something else


class Unreadable(Exception):
    """The process has ended, may not be read, or is a Python of an unknown version."""


class NoPython(Unreadable):
    """The process is not a Python interpreter."""


@attrs.frozen(slots=True)
class Layout:
    """The offsets of fields in bytes. `frame`: from a thread to its newest frame, by pointers."""

    interpreters: int  # of _PyRuntimeState
    threads: int  # of PyInterpreterState
    following: int  # of PyInterpreterState, the next one
    native: int  # of PyThreadState
    frame: tuple[int, ...]
    previous: int  # of _PyInterpreterFrame
    code: int
    owner: int
    first_line: int  # of PyCodeObject
    instructions: int
    ascii: int  # of a str, where its characters begin
    compact: int
    instruction: int = 56  # of _PyInterpreterFrame
    next_thread: int = 8  # of PyThreadState
    file: int = 112  # of PyCodeObject
    name: int = 128
    lines: int = 136


LAYOUTS = {
    (3, 11): Layout(40, 16, 0, 160, (56, 8), 48, 32, 69, 72, 184, 48, 72),
    (3, 12): Layout(40, 72, 0, 144, (56, 0), 8, 0, 70, 68, 192, 40, 56),
    (3, 13): Layout(632, 7344, 7264, 160, (72,), 8, 0, 70, 68, 200, 40, 56),
}


def python_stacks(pid: int) -> Iterator[str]:
    """Yield the stacks of all threads of a Python process as faulthandler writes them, which takes some 2 ms. Raises Unreadable."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            memory = _Memory(file)
            layout, interpreter = _interpreter(pid, memory)
            for thread in islice(_threads(memory, layout, interpreter), THREADS):
                yield f"Thread {memory.number(thread + layout.native)} (most recent call first):"
                try:
                    yield from _frames(memory, layout, thread)
                except _FAULTS:
                    yield "  (its frames changed while they were read)"
    except _FAULTS as error:
        raise Unreadable(str(error)) from error


class _Memory:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, address: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, address)

    def number(self, address: int, form: str = "<Q") -> int:
        return int(struct.unpack(form, self.read(address, struct.calcsize(form)))[0])

    def text(self, layout: Layout, address: int) -> str:
        """Return a str of the other process: of one byte a character, or of two or four."""
        length, state = self.number(address + 16), self.number(address + 32, "<I")
        size = state >> 2 & 7
        if size not in (1, 2, 4) or length * size > _LONGEST:
            raise ValueError("no text")
        start = address + (layout.ascii if state >> 6 & 1 else layout.compact)
        encoding = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}[size]
        return self.read(start, length * size).decode(encoding, "replace")

    def bytes(self, address: int) -> bytes:
        return self.read(address + 32, min(self.number(address + 16), 1 << 20))


def _interpreter(pid: int, memory: _Memory) -> tuple[Layout, int]:
    """Return the layout of the process's Python, and the address of its first interpreter."""
    runtime, version = _symbols(pid, "_PyRuntime", "Py_Version")
    number = memory.number(version) if version else 0  # a symbol from 3.11 on
    layout = LAYOUTS.get((number >> 24 & 255, number >> 16 & 255))
    if layout is None:
        raise Unreadable(f"its Python is not one of {', '.join(f'{major}.{minor}' for major, minor in LAYOUTS)}")
    if memory.read(runtime, 8) == _COOKIE and memory.number(runtime + 16):
        raise Unreadable("its Python is a free-threaded build")
    return layout, memory.number(runtime + layout.interpreters)


def _threads(memory: _Memory, layout: Layout, interpreter: int) -> Iterator[int]:
    """Yield the addresses of the threads of all interpreters."""
    for _ in range(INTERPRETERS):
        if not interpreter:
            return
        thread = memory.number(interpreter + layout.threads)
        while thread:
            yield thread
            thread = memory.number(thread + layout.next_thread)
        interpreter = memory.number(interpreter + layout.following)


def _frames(memory: _Memory, layout: Layout, thread: int) -> Iterator[str]:
    frame = thread
    for offset in layout.frame:
        frame = memory.number(frame + offset)
    for _ in range(FRAMES):
        if not frame:
            return
        if memory.number(frame + layout.owner, "<B") < _CSTACK:
            code = memory.number(frame + layout.code)
            at = memory.number(frame + layout.instruction) - (code + layout.instructions)
            first, table = (
                memory.number(code + layout.first_line, "<i"),
                memory.bytes(memory.number(code + layout.lines)),
            )
            file, name = (memory.text(layout, memory.number(code + offset)) for offset in (layout.file, layout.name))
            yield f'  File "{file}", line {_line(table, first, at)} in {name}'
        frame = memory.number(frame + layout.previous)
    yield "  ..."


def _line(table: bytes, line: int, at: int) -> int:
    """Return the line of the instruction at byte `at` by a code's table of locations (CPython's Objects/locations.md)."""
    position, end = 0, 0
    while position < len(table):
        kind, length = table[position] >> 3 & 15, ((table[position] & 7) + 1) * 2
        position += 1
        if 10 <= kind <= 12:
            line += kind - 10
        elif kind in (13, 14):
            value, shift = 0, 0
            while True:
                byte = table[position]
                value, shift, position = value | (byte & 63) << shift, shift + 6, position + 1
                if not byte & 64:
                    break
            line += -(value >> 1) if value & 1 else value >> 1
        end += length
        if at < end:
            break
        while (
            position < len(table) and not table[position] & 128
        ):  # the columns; only the first byte of an entry has this bit
            position += 1
    return line


def _symbols(pid: int, *names: str) -> list[int]:
    """Return the addresses of symbols of the process's Python, 0 where it lacks one. Raises NoPython where it lacks the first."""
    for path, begin in _images(pid):
        with open(f"/proc/{pid}/root{path}", "rb") as file:
            values = [_value(file, name.encode()) for name in names]
        if values[0][0]:
            return [value and value + (0 if is_fixed else begin) for value, is_fixed in values]
    raise NoPython


def _images(pid: int) -> Iterator[tuple[str, int]]:
    """Yield the files that may hold the interpreter, with where each begins in memory."""
    executable = os.readlink(f"/proc/{pid}/exe")
    seen = set()
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 5)
            path = fields[5] if len(fields) == 6 else ""
            if path not in seen and (path == executable or os.path.basename(path).startswith("libpython")):
                seen.add(path)
                yield path, int(fields[0].partition("-")[0], 16) - int(fields[2], 16)


def _value(file: BinaryIO, name: bytes) -> tuple[int, bool]:
    """Return the value of a symbol among the dynamic ones of an ELF file, 0 where it has none, and whether its addresses are fixed."""
    file.seek(0)
    head = file.read(64)
    if head[:6] != b"\x7fELF\x02\x01":  # 64 bits, little-endian
        return 0, False
    offset, size, count = struct.unpack_from("<Q", head, 40)[0], *struct.unpack_from("<HH", head, 58)
    file.seek(offset)
    sections = [struct.unpack_from("<IIQQQQI", file.read(size)) for _ in range(count)]
    for _, kind, _, _, begin, length, names in sections:
        if kind == _DYNSYM:
            file.seek(sections[names][4])
            strings = file.read(sections[names][5])
            file.seek(begin)
            index = strings.find(b"\0" + name + b"\0") + 1
            for entry, _, _, _, value, _ in struct.iter_unpack("<IBBHQQ", file.read(length)) if index else ():
                if entry == index:
                    return value, struct.unpack_from("<H", head, 16)[0] == _EXECUTABLE
    return 0, False
