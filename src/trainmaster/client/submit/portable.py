"""A Python that can be moved, with packages: what `environment.requirements` becomes on a cluster, whose nodes may have no Python at all.

It is a copy of the interpreter that the submitter's programs would find, with its standard library and none of its packages; the listed
packages are installed into the copy. The copy is made into one archive once, with `bin/` and `lib/` at its top. CPython finds its library
by its own place (getpath). So only two things tie a copy to the place of the original. The loader looks there for libpython (`RPATH`, which
is written anew with ld.so(8)'s `$ORIGIN`). Scripts name their interpreter by its path; they get a first line that looks in their own
folder. To prove that the copy is whole, it is run, and the files that it has loaded are checked. The libraries of the system (libc,
OpenSSL) are the nodes' own, so these must be of the submitter's platform.

The standard library is one file, `pythonXY.zip`, where CPython looks for it first (as in Windows' embeddable Python): a NodeManager without
Hadoop's native library starts a `chmod` for each file that it unpacks, which took 20 s for the 2,800 files of a library as it is. These
stay outside it: `os.py`, by which CPython knows its own place, extension modules, and the few packages that look for files next to their
own.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import attrs

from trainmaster.client.spec.environment import environment_error, make_once, run_command

ARCHIVE = "environment.tar.gz"
_KEY = "requirements"
_LEFT_OUT = (
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "config-*",
    "EXTERNALLY-MANAGED",
    "*.opt-?.pyc",
)
_FAST = 1  # gzip's level: it is made while somebody waits
_ASK = """\
import json, os, sys, sysconfig
said = sysconfig.get_config_var
print(json.dumps({"version": sys.version, "number": list(sys.version_info[:2]), "prefix": sys.base_prefix,
  "executable": os.path.realpath(getattr(sys, "_base_executable", sys.executable)), "library": sysconfig.get_path("stdlib"),
  "shared": os.path.join(said("LIBDIR") or "", said("INSTSONAME") or "")}))
"""
_LOADED = "import sys; print(sys.prefix); print(open('/proc/self/maps').read())"
_APART = ("ensurepip", "lib2to3", "lib-dynload", "os.py", "site-packages", "venv")
_ZIP = """\
import importlib.util, marshal, os, shutil, sys, zipfile
library, goal, *apart = sys.argv[1:]
with zipfile.ZipFile(goal, "w") as packed:
    for top in sorted(set(os.listdir(library)) - set(apart)):
        path = os.path.join(library, top)
        walk = os.walk(path) if os.path.isdir(path) else [(library, [], [top])]
        for folder, folders, files in walk:
            folders[:] = sorted(set(folders) - {"__pycache__"})
            for name in sorted(files):
                with open(os.path.join(folder, name), "rb") as file:
                    content = file.read()
                member = os.path.relpath(os.path.join(folder, name), library)
                packed.writestr(zipfile.ZipInfo(member), content)
                if name.endswith(".py"):
                    code = marshal.dumps(compile(content, member, "exec", dont_inherit=True))
                    head = importlib.util.MAGIC_NUMBER + b"\\1\\0\\0\\0" + importlib.util.source_hash(content)  # PEP 552, unchecked
                    packed.writestr(zipfile.ZipInfo(member + "c"), head + code)
"""
_BESIDE = """\
#!/bin/sh
'''exec' "$(dirname "$(readlink -f "$0")")/python3" "$0" "$@"
' '''
"""
_ORIGIN = b"$ORIGIN/../lib\0"


@attrs.frozen(slots=True)
class Interpreter:
    """A Python, as it describes itself."""

    version: str
    number: tuple[int, int]
    prefix: Path
    executable: Path
    library: Path  # the standard one
    shared: Path  # its libpython, where it has one


def archive(requirements: Path, environ: Mapping[str, str]) -> Path:
    """Return the archive of the python3 that `environ` finds, with the packages of `requirements`. Raises BadInput, naming the key."""
    python = interpreter(environ)
    identity = f"portable {python.version} {python.prefix}"
    return make_once(_KEY, requirements, identity, lambda place: _make(requirements, place, python, environ)) / ARCHIVE


def interpreter(environ: Mapping[str, str]) -> Interpreter:
    """Return the python3 of `environ`, else ours; of a virtual environment, the one that it was made with."""
    python = shutil.which("python3", path=environ.get("PATH")) or sys.executable
    facts = json.loads(run_command(_KEY, [python, "-I", "-c", _ASK], environ))
    paths = {name: Path(facts[name]) for name in ("prefix", "executable", "library", "shared")}
    return Interpreter(facts["version"], tuple(facts["number"]), **paths)


def _make(requirements: Path, place: Path, python: Interpreter, environ: Mapping[str, str]) -> None:
    root = place / "environment"
    copy(python, root)
    _install(requirements, root, environ)
    _loosen(root)
    with tarfile.open(place / ARCHIVE, "w:gz", compresslevel=_FAST) as packed:
        for entry in sorted(root.iterdir()):
            packed.add(entry, entry.name)
    shutil.rmtree(root)


def copy(python: Interpreter, root: Path) -> None:
    """Copy the interpreter with its standard library to `root`. Raises BadInput where it cannot be moved."""
    (root / "bin").mkdir(parents=True)
    name = f"python{python.number[0]}.{python.number[1]}"
    shutil.copy2(python.executable, root / "bin" / name)
    for link in ("python3", "python"):
        (root / "bin" / link).symlink_to(name)
    library = root / os.path.relpath(python.library, python.prefix)
    shutil.copytree(python.library, library, ignore=shutil.ignore_patterns(*_LEFT_OUT), ignore_dangling_symlinks=True)
    (library / "site-packages").mkdir(exist_ok=True)
    if python.shared.is_file():
        (root / "lib").mkdir(exist_ok=True)
        shutil.copy2(python.shared, root / "lib" / python.shared.name)
    lead_beside(root / "bin" / name)
    _check_copy(root, python)
    goal = library.parent / f"python{python.number[0]}{python.number[1]}.zip"
    run_command(_KEY, [str(root / "bin" / "python3"), "-I", "-c", _ZIP, str(library), str(goal), *_APART], {})
    for entry in list(library.iterdir()):
        if entry.name in _APART:
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    _check_copy(root, python)


def _check_copy(root: Path, python: Interpreter) -> None:
    """Run the copy. Raises BadInput where it uses anything of the original."""
    completed = subprocess.run(
        [root / "bin" / "python3", "-I", "-c", _LOADED], env={}, capture_output=True, text=True, check=False, timeout=60
    )
    prefix, _, maps = completed.stdout.partition("\n")
    loaded = {Path(line.split(maxsplit=5)[5].strip()) for line in maps.splitlines() if line.count("/")}
    foreign = [path for path in loaded if "libpython" in path.name and not path.is_relative_to(root.resolve())]
    if completed.returncode != 0 or Path(prefix) != root or foreign:
        raise environment_error(
            _KEY, str(python.executable),
            f"this Python cannot be moved: its copy {f'loads {foreign[0]}' if foreign else 'does not run'}",
            f"use one that can be (uv python install {'.'.join(map(str, python.number))}, first on PATH), or environment.archive",
        )  # fmt: skip


def _install(requirements: Path, root: Path, environ: Mapping[str, str]) -> None:
    own_python = str(root / "bin" / "python3")
    uv = shutil.which("uv", path=environ.get("PATH")) or shutil.which("uv", path=os.path.dirname(sys.executable))
    if uv is None:
        run_command(_KEY, [own_python, "-I", "-m", "ensurepip"], environ)
    how = (
        [uv, "pip", "install", "--python", own_python, "--compile-bytecode"]
        if uv
        else [own_python, "-I", "-m", "pip", "install", "-q"]
    )
    run_command(_KEY, [*how, "-r", str(requirements)], environ)


def _loosen(root: Path) -> None:
    """Have scripts find the interpreter in their own folder, wherever that is. (Debian's Python has them put into `local/bin`.)"""
    debian_bin = root / "local" / "bin"
    for script in debian_bin.iterdir() if debian_bin.is_dir() else ():
        script.rename(root / "bin" / script.name)
    for script in (root / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        head, _, rest = script.read_bytes().partition(b"\n")
        if head.startswith(b"#!" + os.fsencode(root)):
            script.write_bytes(_BESIDE.encode() + rest)


def lead_beside(executable: Path) -> None:
    """Have an ELF file's RPATH lead to `lib` beside its folder, where it has one with room for that. (elf(5), 64 bits, little-endian.)"""
    content = bytearray(executable.read_bytes())
    if content[:6] != b"\x7fELF\x02\x01":
        return
    start, size, count = *struct.unpack_from("<Q", content, 32), *struct.unpack_from("<HH", content, 54)
    heads = [struct.unpack_from("<IIQQQQ", content, start + number * size) for number in range(count)]
    dynamic = next((head for head in heads if head[0] == 2), None)
    if dynamic is None:
        return
    tags = dict(struct.unpack_from("<QQ", content, dynamic[2] + at) for at in range(0, dynamic[5], 16))
    # DT_RUNPATH, DT_RPATH: offsets in DT_STRTAB, whose address is one of the running program.
    path = tags.get(29, tags.get(15))
    table = next(
        (
            tags[5] - head[3] + head[2]
            for head in heads
            if head[0] == 1 and head[3] <= tags.get(5, -1) < head[3] + head[5]
        ),
        None,
    )
    if path is None or table is None:
        return
    at = table + path
    length = content.index(0, at) - at
    if length + 1 >= len(_ORIGIN):
        content[at : at + length] = _ORIGIN.ljust(length, b"\0")[:length]
        executable.write_bytes(content)
