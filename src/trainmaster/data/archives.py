"""Archives: a job's files packed for its tasks, and archives of others unpacked without harm.

Packing is a function of the files alone: equal files give equal bytes and so one name, `<sha256>.tar.gz`, which is the key in caches. Names
are sorted, times are 0, owners are empty, permissions are 644 or 755. `.gitignore` files are honoured as git reads them, in every folder;
`.git` itself, caches and virtual environments are left out. A link that stays inside the packed folder stays a link. If a link leads to a
file elsewhere, that file is packed. A link to a folder elsewhere or to nothing, a pipe and a socket are left out and named. An empty folder
is packed as one. A file that cannot be read is refused, for it may be needed.

Unpacking trusts nothing. Every member is checked before the first is written: a name or link that leads outside, a device, or a member that
would be written through a link refuses the whole archive, naming the member. A link may begin with ".." but not contain it further on. No
member is below a link, so no chain of links leads out. A hard link names an earlier file of the archive, without "..": os.link follows the
folders of its target, which may be links. The archive is opened once, and the members that were checked are those that are written. Each
member of a zip has a name and a content of its own. Headers are bounded while they are read, for they are held in memory. The data filter
of `tarfile`, where the Python has one, checks each member of a tar again against the folder as it is by then. The folder appears by a
rename.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import lzma
import os
import secrets
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import attrs

from trainmaster.core.errors import BadInput, TrainmasterError
from trainmaster.data.store.transfer import make_room, writing
from trainmaster.log.storage import remove_drafts

_AS_CHECKED: Mapping[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
_CACHE = b"Signature: 8a477f597d28d172789f06886806bc55"
_Specs = tuple[tuple[str, Any], ...]  # (folder, its .gitignore), the outermost first
_HEADERS = 64 << 10  # bytes of the headers of a member: those of the longest name and link take 9 KiB
_ALL_HEADERS = 256 << 20  # bytes of the headers of all members
_MEMBERS = 1_000_000  # in an archive
_LONGEST_LINK = 4096  # bytes: PATH_MAX of Linux
_DAMAGED = (  # RuntimeError: a zip that is encrypted, or packed in a way that zipfile does not know
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError, RuntimeError, UnicodeDecodeError,
)  # fmt: skip
# Errors that an archive causes: offsets below 0, names that are too long, files below files; None is the number of those of bz2 and gzip.
_IMPOSSIBLE = {None, errno.EINVAL, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}


@attrs.frozen(slots=True)
class Archive:
    """A packed archive. `left_out`: the names of the files that could not be packed."""

    path: str
    left_out: tuple[str, ...] = ()


@attrs.frozen(slots=True)
class Member:
    """A file to pack: its name in the archive, its path, and where it leads if it stays a link; or an empty folder.

    `is_named`: the job names the file itself. It may be executed then, whatever its mode, as YARN has it.
    """

    name: str
    source: str
    link: str = ""
    is_folder: bool = False
    is_named: bool = False

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return 0 if self.link or self.is_folder else os.stat(self.source).st_size


def pack(
    sources: Iterable[str], directory: str, root: str = ".", without: Collection[str] = (), never: Collection[str] = ()
) -> Archive:
    """Pack files and folders (relative to `root`, or absolute) into `<directory>/<sha256>.tar.gz`.

    Members have their paths below `root`; the content of root itself is at the top. A file or folder from elsewhere is packed under its own
    name. The archive is readable by its owner alone, as some file in it may be. `without`, `never`: as for `listed`. Raises BadInput for a
    file that is missing or cannot be read.
    """
    members, left_out = listed(sources, root, without, never)
    return Archive(pack_members(members, directory), tuple(sorted(left_out)))


def pack_members(members: Iterable[Member], directory: str) -> str:
    """Pack the members that `listed` returned into `<directory>/<sha256>.tar.gz`; return that path."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    remove_drafts(directory)
    draft = os.path.join(directory, f".{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with writing(draft), open(descriptor, "wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            digest = _pack(packed, members)
        path = os.path.join(directory, f"{digest}.tar.gz")
        os.replace(draft, path)
    finally:
        if os.path.exists(draft):
            os.unlink(draft)
    return path


def listed(
    sources: Iterable[str], root: str = ".", without: Collection[str] = (), never: Collection[str] = ()
) -> tuple[list[Member], list[str]]:
    """Return the members that `pack` packs, sorted by name, and the names of what it leaves out.

    `without`: paths below root that are not packed with root itself, but are if a source names them, or a folder that holds them.
    `never`: paths that are packed only if a source names them, or a path inside them.
    """
    left_out: list[str] = []
    members: dict[str, Member] = {}
    root = os.path.abspath(root)
    passed = {os.path.normpath(os.path.join(root, path)) for path in without}
    for source in sources:
        try:
            for member in _members(source, root, passed, {*never}, left_out):
                members.setdefault(member.name, member)
        except OSError as error:
            raise _unreadable(source, error) from error
    return [members[name] for name in sorted(members)], left_out


def unpack(archive: str, directory: str, *, absolute_links: bool = False) -> None:
    """Unpack a tar (plain, gz, bz2, xz) or zip archive to `directory`, which must not exist.

    `absolute_links` lets links lead to absolute paths, as environments have them to the interpreter; still nothing is written through
    one. Raises BadInput naming the member that is refused, DiskFull, or FileNotFoundError.
    """
    directory = os.path.abspath(directory)
    fresh = os.path.join(os.path.dirname(directory), f".{os.path.basename(directory)}.{secrets.token_hex(4)}.part")
    os.makedirs(fresh)
    try:
        with open(archive, "rb") as file:
            if zipfile.is_zipfile(file):
                with _open_zip(file) as packed:
                    _unzip(packed, archive, fresh)
            else:
                file.seek(0)
                with _Tar.open(fileobj=file) as tar:
                    _untar(tar, archive, fresh, absolute_links)
        os.rename(fresh, directory)
    except TrainmasterError:
        raise
    except _TooLarge as error:
        raise BadInput(
            f"{archive} {error}", place=archive, mend="pack it as several archives", anchor="unsafe-archive"
        ) from error
    except (*_DAMAGED, OSError) as error:
        if not isinstance(error, _DAMAGED) and error.errno not in _IMPOSSIBLE:
            raise
        raise BadInput(
            f"{archive} is not an archive that can be read: {error}",
            place=archive,
            mend="tar, tar.gz, tar.bz2, tar.xz and zip are known",
            anchor="bad-archive",
        ) from error
    finally:
        if os.path.exists(fresh):
            shutil.rmtree(fresh)


# -- packing --


def _members(source: str, root: str, without: set[str], never: set[str], left_out: list[str]) -> Iterator[Member]:
    path, alias = _split_alias(source, root)
    place = os.path.normpath(os.path.join(root, path))
    if not os.path.exists(place):
        raise BadInput(f"{path} does not exist", place=f"files: {source}", mend="check files:", anchor="no-file")
    inside = place == root or place.startswith(root.rstrip("/") + "/")
    name = alias or (os.path.relpath(place, root) if inside else os.path.basename(place))
    if not os.path.isdir(place):
        if not os.path.isfile(place):
            raise BadInput(
                f"{path} is not a file or a folder", place=f"files: {source}", mend="leave it out", anchor="no-file"
            )
        yield Member(name, place, is_named=True)
        return
    above, passed = _specs_above(root, place) if inside else (), never | without if place == root else never
    yield from _walk(place, "" if name == "." else name, above, passed, left_out)


def _split_alias(source: str, root: str) -> tuple[str, str]:
    """Split a source, PATH or PATH#NAME, into the path and the name that it gets; a file whose own name has a # takes precedence."""
    path, mark, name = source.partition("#")
    if not mark or os.path.lexists(os.path.join(root, source)):
        return source, ""
    plain = os.path.normpath(name) if name else ""
    if not plain or plain.startswith(("/", "..")):
        raise BadInput(
            f"{name!r} is not a name below the working directory", place=f"files: {source}",
            mend="write PATH#NAME", anchor="wrong-value",
        )  # fmt: skip
    return path, plain


def _walk(top: str, name: str, specs: _Specs, without: set[str], left_out: list[str]) -> Iterator[Member]:
    folders: list[tuple[str, str, _Specs]] = [(top, name, specs)]
    for folder, prefix, rules_above in folders:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        if folder != top and _is_cache(folder, entries):
            continue
        if not entries and prefix:
            yield Member(prefix, folder, is_folder=True)
        rules = (*rules_above, *_spec(folder))
        for entry in entries:
            member = f"{prefix}/{entry.name}" if prefix else entry.name
            if (
                entry.name == ".git"
                or entry.path in without
                or _is_ignored(rules, entry.path, entry.is_dir(follow_symlinks=False))
            ):
                continue
            if entry.is_symlink() and (link := _inner_target(top, entry.path)):
                yield Member(member, entry.path, link)
            elif entry.is_symlink() and not os.path.isfile(entry.path):
                left_out.append(member)
            elif entry.is_dir():
                folders.append((entry.path, member, rules))
            elif entry.is_file():
                yield Member(member, entry.path)
            else:
                left_out.append(member)


def _is_cache(folder: str, entries: list[os.DirEntry[str]]) -> bool:
    """Return True for Python's bytecode, a folder with the tag of https://bford.info/cachedir/, and a virtual environment (PEP 405), whose
    scripts name the path that it has on this machine.
    """
    files = {entry.name for entry in entries if entry.name in ("CACHEDIR.TAG", "pyvenv.cfg") and entry.is_file()}
    if os.path.basename(folder) == "__pycache__" or "pyvenv.cfg" in files:
        return True
    if not files:
        return False
    with open(os.path.join(folder, "CACHEDIR.TAG"), "rb") as tag:
        return tag.read(len(_CACHE)) == _CACHE


def _unreadable(source: str, error: OSError) -> BadInput:
    return BadInput(
        f"{error.filename} cannot be read: {error.strerror}",
        place=f"files: {source}",
        mend="list it in .gitignore, or name less in files",
        anchor="no-file",
    )


def _inner_target(top: str, path: str) -> str:
    """Return the target of a link in a form that `unpack` accepts; "" where it is not inside `top`."""
    target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    if os.path.isabs(os.readlink(path)) or not target.startswith(f"{top}/") or not os.path.exists(path):
        return ""
    return os.path.relpath(target, os.path.dirname(path))


def _specs_above(root: str, place: str) -> _Specs:
    """Return the .gitignore files of the folders from `root` down to the one above `place`."""
    specs: _Specs = ()
    while place != root:
        place = os.path.dirname(place)
        specs = (*_spec(place), *specs)
    return specs


def _spec(folder: str) -> _Specs:
    try:
        with open(os.path.join(folder, ".gitignore"), encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return ()
    from pathspec import GitIgnoreSpec

    return ((folder, GitIgnoreSpec.from_lines(lines)),)


def _is_ignored(specs: _Specs, path: str, folder: bool) -> bool:
    """Tell whether git would ignore a path: the innermost .gitignore with a matching rule decides (gitignore(5))."""
    for place, spec in reversed(specs):
        decision = spec.check_file(os.path.relpath(path, place) + ("/" if folder else "")).include
        if decision is not None:
            return bool(decision)
    return False


def _pack(packed: Any, members: Iterable[Member]) -> str:
    """Write the tar and return its SHA-256."""
    hashed = _HashingFile(packed)
    with tarfile.open(fileobj=hashed, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for member in members:
            info = tarfile.TarInfo(member.name)
            if member.link:
                info.type, info.linkname, info.mode = tarfile.SYMTYPE, member.link, 0o777
                tar.addfile(info)
                continue
            if member.is_folder:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
                continue
            with _open_member(member) as file:
                status = os.fstat(file.fileno())
                info.size = status.st_size
                info.mode = 0o755 if member.is_named or status.st_mode & 0o100 else 0o644
                tar.addfile(info, file)
    return hashed.digest.hexdigest()


def _open_member(member: Member) -> BinaryIO:
    try:
        return open(member.source, "rb")
    except OSError as error:
        raise _unreadable(member.name, error) from error


class _HashingFile:
    """A file object that hashes what it writes to another file."""

    def __init__(self, file: Any) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self._file.write(data)
        return len(data)


# -- unpacking --


class _TooLarge(Exception):
    """An archive would take more memory than its content is worth."""


class _Bounded:
    """A file with a bound: `left` more bytes may be read; None: all."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.left: int | None = None

    def read(self, size: int = -1) -> bytes:
        if self.left is None:
            return bytes(self._file.read(size))
        content = bytes(self._file.read(self.left + 1 if size < 0 else min(size, self.left + 1)))
        if len(content) > self.left:
            raise _TooLarge("has headers that are larger than those of an archive can be")
        self.left -= len(content)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class _Tar(tarfile.TarFile):
    """A tar whose headers are bounded while they are read: long names, attributes and maps of holes, and the number of members."""

    def __init__(self, name: Any, mode: Any, fileobj: Any, **options: Any) -> None:
        self._content = _Bounded(fileobj)  # as it is unpacked: compressed, 1 GiB of a name takes 1 MiB
        self._all_headers = 0
        super().__init__(name, mode, self._content, **options)

    def next(self) -> tarfile.TarInfo | None:
        _check_count(len(self.members))  # type: ignore[attr-defined]
        self._content.left = _HEADERS
        try:
            member = super().next()
        finally:
            self._all_headers += _HEADERS - (self._content.left or 0)
            self._content.left = None
        if self._all_headers > _ALL_HEADERS:
            raise _TooLarge(f"has more than {_ALL_HEADERS >> 20} MiB of headers")
        return member


def _check_count(members: int) -> None:
    if members > _MEMBERS:
        raise _TooLarge(f"has more than {_MEMBERS:,} members")


def _open_zip(file: BinaryIO) -> zipfile.ZipFile:
    """Open a zip, whose directory is bounded while it is read."""
    content: Any = _Bounded(file)
    content.left = _ALL_HEADERS
    packed = zipfile.ZipFile(content)
    content.left = None
    _check_count(len(packed.infolist()))
    return packed


class _Names:
    """The rules for the names of an archive's members and for the targets of their links."""

    def __init__(self, archive: str, absolute_links: bool) -> None:
        self._archive, self._absolute_links = archive, absolute_links
        self._links: set[str] = set()
        self._parents: set[str] = set()
        self.files: set[str] = set()  # plain names of the members that hard links may name

    def check(self, name: str, link: str | None = None, hard: bool = False) -> str:
        """Return the member's name, normalised. Raises BadInput."""
        if not name:
            raise self.refusal(name, "has no name")
        if name.startswith("/") or "\\" in name or "\0" in name or ".." in name.split("/"):
            raise self.refusal(name, "leads out of the archive")
        plain = os.path.normpath(name)
        parents = set(_parents(plain))
        if parents & self._links or plain in self._links:
            raise self.refusal(name, "would be written through a link")
        self._parents |= parents
        if hard:
            self._check_hard(name, link or "")
        elif link is not None:
            self._check_link(name, plain, link)
        return plain

    def _check_hard(self, name: str, link: str) -> None:
        """Refuse a target that is not the plain name of an earlier file: "a/../b" is another file than "b" where "a" is a link."""
        target = os.path.normpath(link)
        if ".." in link.split("/") or target not in self.files or {target, *_parents(target)} & self._links:
            raise self.refusal(name, f"is a hard link to {link}, which is not an earlier file of the archive")

    def _check_link(self, name: str, plain: str, link: str) -> None:
        if plain in self._parents or plain == ".":
            raise self.refusal(name, "is a link where a folder is")
        self._links.add(plain)
        if "\0" in link:
            raise self.refusal(name, f"is a link to {link!r}, which is not a path")
        if link.startswith("/") and self._absolute_links:
            return
        parts = [part for part in link.split("/") if part not in ("", ".")]
        rising = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
        if link.startswith("/") or rising > plain.count("/") or ".." in parts[rising:]:
            raise self.refusal(name, f"is a link to {link}, which leads out of the archive")

    def refusal(self, name: str, why: str) -> BadInput:
        return BadInput(
            f"the member {name!r} of {os.path.basename(self._archive)} {why}",
            place=self._archive,
            mend="make the archive anew without it",
            anchor="unsafe-archive",
        )


def _parents(path: str) -> Iterator[str]:
    while (path := os.path.dirname(path)) not in ("", "/"):
        yield path


def _untar(tar: tarfile.TarFile, archive: str, directory: str, absolute_links: bool) -> None:
    names = _Names(archive, absolute_links)
    members = tar.getmembers()
    for member in members:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise names.refusal(member.name, "is a device or pipe")
        name = names.check(member.name, member.linkname if member.issym() or member.islnk() else None, member.islnk())
        if member.isreg() or member.islnk():
            names.files.add(name)
    while tar.fileobj is not None and tar.fileobj.read(1 << 20):  # to the very end, where the checksum of all stands
        continue
    total = sum(member.size for member in members if member.isreg())
    make_room(directory, total)
    with writing(directory, total):
        for member in members:
            member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            if not (absolute_links and member.issym() and member.linkname.startswith("/")):
                _check_filter(names, member, directory)
            tar.extract(member, directory, **_AS_CHECKED)


def _check_filter(names: _Names, member: tarfile.TarInfo, directory: str) -> None:
    """Let the standard library's own filter look at a member too; Python 3.11 has it from 3.11.4 on."""
    if not hasattr(tarfile, "data_filter"):
        return
    try:
        tarfile.data_filter(member, directory)
    except tarfile.FilterError as error:
        raise names.refusal(member.name, f"is refused by Python's own check: {error}") from error


def _unzip(packed: zipfile.ZipFile, archive: str, directory: str) -> None:
    names = _Names(archive, absolute_links=False)
    members: list[
        tuple[zipfile.ZipInfo, str, str | None]
    ] = []  # member, its normalised name, its target if it is a link
    seen: set[str | int] = set()
    for info in packed.infolist():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            raise names.refusal(info.filename, "is a device or pipe")
        link = _link_of(packed, info, names) if kind == stat.S_IFLNK else None
        name = names.check(info.filename, link)
        if {name, info.header_offset} & seen:
            raise names.refusal(info.filename, "is in the archive twice, or shares its content with another member")
        seen |= {name, info.header_offset}
        members.append((info, name, link))
    total = sum(info.file_size for info, _, _ in members)
    make_room(directory, total)
    with writing(directory, total):
        for info, name, link in members:
            target = os.path.join(directory, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if link is not None:
                os.symlink(link, target)
            elif info.is_dir():
                os.makedirs(target, exist_ok=True)
            else:
                with packed.open(info) as file, open(target, "wb") as into:
                    shutil.copyfileobj(file, into)
                os.chmod(target, 0o755 if info.external_attr >> 16 & 0o100 else 0o644)


def _link_of(packed: zipfile.ZipFile, info: zipfile.ZipInfo, names: _Names) -> str:
    """Return the target of a link, which is the member's content. Raises BadInput."""
    if info.file_size > _LONGEST_LINK:
        raise names.refusal(
            info.filename, f"is a link of {info.file_size} bytes, and links have at most {_LONGEST_LINK}"
        )
    return os.fsdecode(packed.read(info))
