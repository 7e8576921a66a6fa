"""Be a template: stop a starting interpreter before its program, import what the program will import, and go on in forks.

Python imports a module of this name while it starts (the library's `site`), after sys.argv and the standard streams were made, and before
sys.path[0] and `__main__` are. Only a template has this file's folder on PYTHONPATH. The first thing done here is to take the folder away
again. A fork simply returns from here: the interpreter itself then runs the program, so argv, `__main__`, tracebacks, exit status and
atexit are its own, and nothing has to be imitated but what a process has from its birth: session, directory, environment, streams, seeds.

The agent speaks over descriptor 0. Each request is a word with descriptors: the first is a socket for this conversation alone.

    find    name the imports of the program (in a fork, see `imports`)
    fill    do them, one by one. One that has a side effect is reported, and ends this process, which is spoiled
    fork    have a grandchild that becomes the program once it has got its directory, environment and three descriptors. Its parent
            ends, so the agent, a subreaper, becomes the one who waits for it

A message is its length (4 bytes, little-endian) and parts divided by NUL bytes, as in /proc/PID/environ.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # a program may never import `typing`
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, ClassVar

_HERE = os.path.dirname(os.path.abspath(__file__))
_NAME = "tm-warm"  # shown by ps -e and top; ps -f, pgrep -f and py-spy show the command line
_TITLE = b"TRAINMASTER_WARM_TITLE"  # the variable with the command line to show
_PDEATHSIG, _KILL = 1, 9  # linux/prctl.h, signal(7)
_TORCH_SEED = 67280421310721  # c10::detail::default_rng_seed_val (c10/core/GeneratorImpl.h), for versions that begin with a constant
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SHARE = 0.25  # of a core, for imports where the idle priority cannot be had, or is of no use
# Modules that look through all of the environment for names with a prefix of their own.
_SIFTERS = frozenset({"tqdm.utils", "dask.config", "numba.core.config"})
_IDLE_FOR = 20.0  # s of imports at idle priority; on a machine that is never idle they would not end


class _Environ(os._Environ):  # type: ignore[type-arg]
    """Notes the names that were read and may differ in the next attempt."""

    withheld: ClassVar[frozenset[str]] = frozenset()
    read: ClassVar[set[str]] = set()

    def __getitem__(self, name: Any) -> str:
        text = os.fsdecode(name) if isinstance(name, (str, bytes)) else ""
        if (text in self.withheld or text.startswith("TRAINMASTER_")) and not _sifts():
            self.read.add(text)
        value: str = super().__getitem__(name)
        return value

    def __iter__(self) -> Iterator[str]:
        if not _sifts():
            self.read.add("all of os.environ")
        return super().__iter__()


def _sifts() -> bool:
    """Return whether the module that reads the environment is one of those that keep only names of their own."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") in (__name__, "collections.abc"):
        frame = frame.f_back
    return frame.f_globals.get("__name__") in _SIFTERS


def _main() -> None:
    """Serve the agent. Return only in a process that is to be the program."""
    path = os.environ["PYTHONPATH"].partition(":")[2]
    os.environ["PYTHONPATH"] = path
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    del sys.modules["sitecustomize"]
    with open("/proc/self/comm") as file:
        name = file.read().strip()
    _set_name(_NAME)
    template = _Template(name, _set_command_line(os.environb.pop(_TITLE, b"")))
    while True:
        word, descriptors = _receive(0)
        if word == b"find":
            template.find(descriptors[0])
        elif word == b"fill":
            template.fill(descriptors[0])
        elif word == b"fork":
            if template.fork(descriptors):
                return
        else:
            os._exit(0)  # the agent has closed its end
        for descriptor in descriptors:
            os.close(descriptor)


class _Template:
    def __init__(self, name: str, command_line: bytes) -> None:
        """`name`, `command_line`: those that the program has in others' eyes."""
        self._name, self._command_line = name, command_line
        with open("/proc/self/environ", "rb") as file:  # before any `.pth` file changed it
            self._environ = _variables(file.read().split(b"\0"))
        self._environ.pop(_TITLE, None)
        self._environ[b"PYTHONPATH"] = os.environb[b"PYTHONPATH"]
        self._modules = set(sys.modules)
        self._descriptors: set[int] = set()
        self._imported: set[str] = set()

    def find(self, conversation: int) -> None:
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            return
        try:
            scope = {"__name__": "imports"}
            with open(os.path.join(_HERE, "imports.py"), encoding="utf-8") as file:
                exec(compile(file.read(), file.name, "exec"), scope)
            (form, target, folder), mapped = _read(conversation), _read(conversation)
            words = [os.fsdecode(word) for word in (form, target, folder)]
            _write(conversation, scope["find"](*words, [os.fsdecode(path) for path in mapped]))  # type: ignore[operator]
        finally:
            os._exit(0)

    def fill(self, conversation: int) -> None:
        """Do the imports. The answer is empty, or the number of the one that has a side effect, and its side effect in words.

        The number is -1 where none of them is at fault: for `sitecustomize`, or where they take more memory than there is room for.
        """
        statements, withheld, (room, is_summed) = _read(conversation), _read(conversation), _read(conversation)
        _Environ.withheld = frozenset(os.fsdecode(name) for name in withheld)
        for environ in (os.environ, os.environb):
            environ.__class__ = _Environ
        pace = _Pace(int(room), is_summed == b"1")
        self._descriptors = set(_descriptors())
        trouble, position = self._do("import sitecustomize", optional="sitecustomize"), -1
        trouble = trouble and f"sitecustomize {trouble}"
        path = list(sys.path)
        inside = [entry for entry in path if _is_library(entry)]
        sys.path[:] = inside
        sys.meta_path.insert(0, pace)
        for number, statement in enumerate(statements):
            if trouble:
                break
            position, trouble = number, self._do(statement.decode())
            if not trouble and sys.path != inside:
                trouble = "changes sys.path"
            if pace.is_over():
                position, trouble = -1, "its imports take more memory than resources.overhead has room for"
        sys.meta_path.remove(pace)
        pace.end()
        sys.path[:] = path
        for environ in (os.environ, os.environb):
            environ.__class__ = os._Environ
        if trouble:
            _write(conversation, [str(position).encode(), trouble.encode()])
            os._exit(0)
        _prctl()  # imports what forks need
        # Not in a fork: a look at each name would copy the page that it is on, 20 ms in all.
        self._imported = {name.partition(".")[0] for name in set(sys.modules) - self._modules}
        _write(conversation, [])

    def _do(self, statement: str, optional: str = "") -> str:
        """Run an import statement, as the program's own. Return its side effect in words, "" for none."""
        _Environ.read.clear()
        try:
            exec(statement, {"__name__": "__main__"})
        except ImportError as error:
            if not optional or error.name != optional:
                return f"fails: {error}"
        except BaseException as error:  # noqa: BLE001  whatever a module raises
            return f"fails: {error!r}"
        return self._trouble()

    def _trouble(self) -> str:
        if _Environ.read:
            return "reads " + ", ".join(sorted(_Environ.read))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if os.fstat(1).st_size:
            return "prints: " + repr(os.pread(1, 200, 0).decode("utf-8", "replace"))
        for number in sorted(set(_descriptors()) - self._descriptors):
            place = os.readlink(f"/proc/self/fd/{number}")
            return "uses a GPU" if place.startswith("/dev/nvidia") else f"leaves a descriptor open: {place}"
        if getattr(sys.modules.get("torch.cuda"), "_initialized", False):
            return "uses a GPU"
        if "tensorflow" in sys.modules:
            return "imports TensorFlow"
        try:
            os.waitpid(-1, os.WNOHANG)
            return "starts a process"
        except ChildProcessError:
            pass
        if len(_numbers("/proc/self/task")) > 1:
            # OpenBLAS ends its threads before a fork (pthread_atfork) and begins them anew when they are needed.
            pid = os.fork()
            if not pid:
                os._exit(0)
            os.waitpid(pid, 0)
            if len(_numbers("/proc/self/task")) > 1:
                return "starts a thread"
        for name in set(sys.modules) - self._modules:
            module = sys.modules.get(name)
            file = module.__dict__.get("__file__") if type(module) is type(sys) else None
            if isinstance(file, str) and file and not _is_library(file):
                return f"imports {file}"
        return ""

    def fork(self, descriptors: Sequence[int]) -> bool:
        """Return True in the grandchild that is to be the program."""
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            return False
        conversation, goes = descriptors[0], False
        try:
            (agent,) = _read(conversation)
            self._hand_over(conversation)
            try:
                os.setsid()
                _die_with(int(agent))
                _write(conversation, [b"adopted"])
                word, streams = _receive(conversation)
                reason = self._become(_read(conversation), streams) if word else "nobody needs it"
            except Exception as error:  # noqa: BLE001  the agent logs it
                reason = repr(error)
            _write(conversation, [reason.encode()] if reason else [])
            goes = not reason and _read(conversation) == [b"go"]
            os.close(conversation)
        finally:
            if not goes:
                os._exit(0)
        return True

    def _hand_over(self, conversation: int) -> None:
        """Fork, and return in the child once this process has ended: the agent is its parent then.

        The agent hears of the child before: it ends all children that it does not know, when a program is over.
        """
        reading_end, writing_end = os.pipe()
        pid = os.fork()
        if pid:
            _write(conversation, [str(pid).encode()])
            _read(conversation)
            os._exit(0)
        os.close(writing_end)
        os.read(reading_end, 1)  # the end of our parent closes the pipe
        os.close(reading_end)

    def _become(self, request: Sequence[bytes], streams: Sequence[int]) -> str:
        """Be as the program would have been born. Return why that cannot be, "" where it can."""
        (cwd, folder), environ = request[:2], request[2:]
        os.chdir(cwd)
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number, inheritable=True)
            os.close(descriptor)
        _set_name(self._name)
        _set_command_line(self._command_line)
        hidden = self._hidden(os.fsdecode(folder))
        if hidden:
            return f"{hidden} hides a module that the template has imported"
        self._set_environ(_variables(environ))
        for name in ("stdin", "stdout", "stderr"):
            _renew(name)
        for place, finder in sys.path_importer_cache.items():
            if finder is not None and not _is_library(place):
                finder.invalidate_caches()  # type: ignore[attr-defined]
        _seed()
        return ""

    def _hidden(self, folder: str) -> str:
        """Return a file of the program's that a cold start would import where we have imported another."""
        for place in [folder] + [entry for entry in sys.path if not _is_library(entry)]:
            try:
                entries = os.listdir(place)
            except OSError:
                continue
            for entry in entries:
                path = os.path.join(place, entry)
                stem, dot, _ = entry.partition(".")
                if stem in self._imported and (
                    entry.endswith((".py", ".pyc", ".so")) if dot else os.path.exists(path + "/__init__.py")
                ):
                    return path
        return ""

    def _set_environ(self, environ: dict[bytes, bytes]) -> None:
        """Set the environment, with the changes that imports have made to it."""
        data, before = os.environ._data, self._environ  # type: ignore[attr-defined]
        for name in before:
            if name not in data:
                environ.pop(name, None)
        environ.update((name, value) for name, value in data.items() if before.get(name) != value)
        for name in set(data) - set(environ):
            os.unsetenv(name)
        for name, value in environ.items():
            if data.get(name) != value:
                os.putenv(name, value)
        data.clear()
        data.update(environ)


class _Pace:
    """A finder that finds nothing and takes care, at each import, that the others of this machine come first.

    `room`: bytes of memory that may be taken, 0 for no limit. Above it nothing more is imported. `is_summed`: what is shared counts too.
    """

    def __init__(self, room: int, is_summed: bool) -> None:
        self._room, self._is_summed = room, is_summed
        self._policy, self._parameters = os.sched_getscheduler(0), os.sched_getparam(0)
        self._idle = self._may_return()
        if self._idle:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        self._begin()

    def _begin(self) -> None:
        self._began, self._used = time.monotonic(), time.process_time()

    def _may_return(self) -> bool:
        """Tell whether we may come back from the idle priority, for which Linux asks a right (sched(7)): a child tries."""
        pid = os.fork()
        if pid:
            return os.waitpid(pid, 0)[1] == 0
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, self._policy, self._parameters)
            os._exit(0)
        finally:
            os._exit(1)

    def find_spec(self, name: object, path: object = None, target: object = None) -> None:
        if self.is_over():
            raise ImportError("too little memory")
        elapsed = time.monotonic() - self._began
        if not self._idle:
            time.sleep(max(0.0, min(0.2, (time.process_time() - self._used) / _SHARE - elapsed)))
        elif elapsed > _IDLE_FOR:
            self.end()
            self._begin()

    def is_over(self) -> bool:
        if not self._room:
            return False
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident if self._is_summed else resident - shared) * _PAGE > self._room

    def end(self) -> None:
        if self._idle:
            os.sched_setscheduler(0, self._policy, self._parameters)
            self._idle = False


def _is_library(path: str) -> bool:
    """Tell whether this is the standard library, a site-packages, or in one of them."""
    standard = os.path.dirname(os.__file__)
    parts = path.split(os.sep)
    return (
        path == standard or path.startswith(standard + os.sep) or "site-packages" in parts or "dist-packages" in parts
    )


def _die_with(agent: int) -> None:
    """Wait until the agent is our parent, and have the kernel kill us with it."""
    prctl = _prctl()
    deadline = time.monotonic() + 1.0
    while os.getppid() != agent:
        if time.monotonic() > deadline:
            raise TimeoutError("the agent does not adopt it")
        time.sleep(0.0005)
    prctl(_PDEATHSIG, _KILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(0)


def _prctl() -> Any:
    import ctypes

    return ctypes.CDLL(None).prctl


def _renew(name: str) -> None:
    """Make a standard stream anew, as the interpreter does (create_stdio of Python/pylifecycle.c), for its descriptor is another now."""
    import io

    old = getattr(sys, f"__{name}__")
    number, mode = ("stdin", "stdout", "stderr").index(name), "r" if name == "stdin" else "w"
    unbuffered = old.write_through and mode == "w"
    stream: Any = open(number, mode + "b", 0 if unbuffered else -1, closefd=False)  # noqa: SIM115  for good
    raw = stream if unbuffered else stream.raw
    raw.name = f"<{name}>"
    terminal = raw.isatty()
    new = io.TextIOWrapper(
        stream, old.encoding, old.errors, newline="\n", line_buffering=not old.write_through and (terminal or name == "stderr"),
        write_through=old.write_through,
    )  # fmt: skip
    new.mode = mode  # type: ignore[misc]
    setattr(sys, name, new)
    setattr(sys, f"__{name}__", new)


def _seed() -> None:
    """Seed anew, and time anew, what modules seed or time when they are imported.

    A generator of `torch` that begins with its constant begins so in a cold start too. `uuid4` and `secrets` ask the kernel each time.
    """
    modules = sys.modules
    for name in ("random", "numpy.random"):
        if name in modules:
            modules[name].seed()
    generator = getattr(modules.get("torch"), "default_generator", None)
    if generator is not None and generator.initial_seed() != _TORCH_SEED:
        generator.seed()
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None  # type: ignore[attr-defined]
    if "uuid" in modules:
        modules["uuid"]._last_timestamp = None  # type: ignore[attr-defined]
    if "multiprocessing.process" in modules:
        process = modules["multiprocessing.process"]
        process.current_process().authkey = os.urandom(32)
    if "logging" in modules:
        logging = modules["logging"]
        logging._startTime = time.time_ns() if isinstance(logging._startTime, int) else time.time()  # type: ignore[attr-defined]
    if "threading" in modules:
        modules["threading"].main_thread()._set_native_id()


def _variables(entries: Sequence[bytes]) -> dict[bytes, bytes]:
    return {name: value for name, sign, value in (entry.partition(b"=") for entry in entries) if sign}


def _set_name(name: str) -> None:
    with open("/proc/self/comm", "w") as file:
        file.write(name)


def _set_command_line(text: bytes) -> bytes:
    """Change the command line that others see of this process; return what it was, b"" where it cannot be changed.

    `text` is cut to the room of the old one: the memory between arg_start and arg_end (proc(5)). Python has read its arguments from there.
    """
    if not text:
        return b""
    try:
        with open("/proc/self/stat", "rb") as file:
            start, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
        try:
            before = os.pread(memory, end - start, start)
            os.pwrite(memory, text[: len(before) - 1].ljust(len(before), b"\0"), start)
        finally:
            os.close(memory)
    except OSError:  # a sandbox without /proc/self/mem
        return b""
    return before


def _numbers(folder: str) -> list[int]:
    return [int(name) for name in os.listdir(folder)]


def _descriptors() -> list[int]:
    """Return the open descriptors, without that of the listing itself."""
    return [number for number in _numbers("/proc/self/fd") if _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _receive(number: int) -> tuple[bytes, list[int]]:
    """Return the next word on this socket, and the descriptors that come with it; b"" where the other side is gone."""
    import _socket

    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, number)
    try:
        word, extra, _flags, _address = link.recvmsg(4, _socket.CMSG_SPACE(4 * 4))
    finally:
        link.detach()
    data = b"".join(part[2] for part in extra)
    numbers = [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data) - 3, 4)]
    for number in numbers:
        os.set_inheritable(number, False)
    return word, numbers


def _read(conversation: int) -> list[bytes]:
    """Return the parts of the next message; none where the other side is gone."""
    size = int.from_bytes(_exactly(conversation, 4), "little")
    data = _exactly(conversation, size)
    return data.split(b"\0") if data else []


def _exactly(conversation: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(conversation, size - len(data))
        if not piece:
            return b""
        data += piece
    return data


def _write(conversation: int, parts: Sequence[bytes]) -> None:
    data = b"\0".join(parts)
    data = len(data).to_bytes(4, "little") + data
    while data:
        data = data[os.write(conversation, data) :]


if os.environ.get("PYTHONPATH", "").split(":")[0] == _HERE:
    try:
        _main()
    except BaseException:  # noqa: BLE001  whatever happens, a template must not go on to the program
        os._exit(70)
    if "sitecustomize" not in sys.modules:  # there is no other, and a cold start would not have found one
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
