"""Archives: equal files give equal bytes, git's ignored files stay behind, and nothing is ever written outside."""

from __future__ import annotations

import copy
import gzip
import io
import os
import re
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from parts import mounted, need_root

from trainmaster.core.errors import BadInput
from trainmaster.data.archives import pack, unpack
from trainmaster.data.store.transfer import DiskFull


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    for name, content in {
        "train.py": "print(1)",
        "data/large.bin": "x",
        "data/keep.txt": "y",
        "lib/a.py": "1",
        "lib/a.pyc": "2",
        "lib/.gitignore": "!b.pyc\n/build/\n",
        "lib/b.pyc": "3",
        "lib/build/out": "4",
        "lib/deep/build/out": "5",
        ".gitignore": "*.pyc\n/data/*\n!/data/keep.txt\n# a comment\n\\#odd\n",
        "#odd": "6",
        ".git/config": "[core]\n",
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(content)
    (place / "train.py").chmod(0o700)
    return place


def contents(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()}


def test_ignored_files_stay_behind_just_as_git_has_it(project: Path, tmp_path: Path) -> None:
    made = pack(["."], f"{tmp_path}/cache", f"{project}")
    unpack(made.path, f"{tmp_path}/out")
    git = {"GIT_CONFIG_GLOBAL": "/dev/null", "PATH": os.environ["PATH"]}
    subprocess.run(["git", "init", "-q", "."], cwd=project, env=git, check=True)
    told = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=project, env=git, check=True, capture_output=True
    )
    assert contents(tmp_path / "out") == set(told.stdout.decode().split())
    assert contents(tmp_path / "out") == {
        ".gitignore", "data/keep.txt", "lib/.gitignore", "lib/a.py", "lib/b.pyc", "lib/deep/build/out", "train.py",
    }  # fmt: skip
    assert os.stat(made.path).st_mode & 0o077 == 0
    assert (tmp_path / "out/train.py").stat().st_mode & 0o777 == 0o755


def test_equal_files_give_equal_bytes(project: Path, tmp_path: Path) -> None:
    first = pack(["."], f"{tmp_path}/1", f"{project}")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", project, copy], check=True)
    os.utime(copy / "train.py", (0, 0))
    second = pack([f"{copy}/lib", "."], f"{tmp_path}/2", f"{copy}")
    assert Path(first.path).read_bytes() == Path(second.path).read_bytes()
    assert re.fullmatch(r"[0-9a-f]{64}\.tar\.gz", Path(first.path).name)
    assert Path(first.path).name == Path(second.path).name
    (copy / "train.py").write_text("print(2)")
    assert Path(pack(["."], f"{tmp_path}/2", f"{copy}").path).name != Path(first.path).name
    assert len(os.listdir(tmp_path / "2")) == 2


def test_a_part_of_the_project_and_places_elsewhere(project: Path, tmp_path: Path) -> None:
    (tmp_path / "other/inner").mkdir(parents=True)
    (tmp_path / "other/inner/x").write_text("1")
    made = pack(["lib", "train.py", f"{tmp_path}/other/inner", "../other/inner/x"], f"{tmp_path}/cache", f"{project}")
    unpack(made.path, f"{tmp_path}/out")
    assert contents(tmp_path / "out") == {
        "lib/.gitignore", "lib/a.py", "lib/b.pyc", "lib/deep/build/out", "train.py", "inner/x", "x",
    }  # fmt: skip
    with pytest.raises(BadInput, match=r"nothing\.py does not exist"):
        pack(["nothing.py"], f"{tmp_path}/cache", f"{project}")


def test_links(project: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").write_text("from elsewhere")
    (project / "lib/inside").symlink_to("../lib/deep/../a.py")
    (project / "file").symlink_to(tmp_path / "elsewhere/file")
    (project / "folder").symlink_to(tmp_path / "elsewhere")
    (project / "gone").symlink_to("nowhere")
    (project / "loop").symlink_to(".")
    (project / "self").symlink_to("self")
    os.mkfifo(project / "pipe")
    made = pack(["."], f"{tmp_path}/cache", f"{project}")
    assert made.left_out == ("folder", "gone", "loop", "pipe", "self")
    unpack(made.path, f"{tmp_path}/out")
    assert os.readlink(tmp_path / "out/lib/inside") == "a.py"
    assert (tmp_path / "out/file").read_text() == "from elsewhere"
    assert not (tmp_path / "out/file").is_symlink()


REFUSED = """
import os, sys
from pathspec import GitIgnoreSpec  # as long as it may
from trainmaster.core.errors import BadInput
from trainmaster.data.archives import listed, pack
project, cache, by = sys.argv[1:]
os.setuid(65534)
try:
    listed(["."], project) if by == "listed" else pack(["."], cache, project)
except BadInput as error:
    print(error)
"""


@pytest.mark.parametrize(("name", "by"), [("roots", "listed"), ("lib/secret", "pack")])
def test_what_cannot_be_read_is_refused_by_its_name(name: str, by: str) -> None:
    need_root()
    with tempfile.TemporaryDirectory() as place:  # pytest's own is closed to others
        os.chmod(place, 0o755)
        Path(place, "project/lib").mkdir(parents=True)
        Path(place, "project/roots").mkdir()
        Path(place, "project/.gitignore").write_text("" if by == "listed" else "roots/\n")
        Path(place, "project/lib/secret").write_text("of root")
        Path(place, "cache").mkdir()
        os.chown(Path(place, "cache"), 65534, 65534)
        for closed in ("roots", "lib/secret"):
            os.chmod(Path(place, "project", closed), 0o700)
        arguments = [f"{place}/project", f"{place}/cache", by]
        told = subprocess.run([sys.executable, "-c", REFUSED, *arguments], check=True, capture_output=True, text=True)
        assert told.stdout.splitlines()[0] == f"{place}/project/{name} cannot be read: Permission denied"
        assert "list it in .gitignore" in told.stdout
        assert os.listdir(f"{place}/cache") == []


# -- unpacking --


def tar(path: Path, *members: tuple[str, object]) -> str:
    """A tar of (name, content | ("link" or "hard", target) | a type)."""
    with tarfile.open(path, "w") as packed:
        for name, what in members:
            info = tarfile.TarInfo(name)
            if isinstance(what, bytes) and len(what) == 1 and what in b"3467":
                info.type = what
                packed.addfile(info)
            elif isinstance(what, bytes):
                info.size = len(what)
                info.mode = 0o6755
                packed.addfile(info, io.BytesIO(what))
            elif what is None:
                info.type = tarfile.DIRTYPE
                info.mode = 0
                packed.addfile(info)
            else:
                kind, info.linkname = what  # type: ignore[misc]
                info.type = tarfile.SYMTYPE if kind == "link" else tarfile.LNKTYPE
                packed.addfile(info)
    return str(path)


HOSTILE = {
    "rising": [("../evil", b"content")],
    "rising inside": [("a/../../evil", b"content")],
    "absolute": [("/tmp/evil", b"content")],
    "link up": [("a", ("link", "../.."))],
    "link to root": [("a", ("link", "/etc"))],
    "link from below": [("d/a", ("link", "../../x"))],
    "through a link": [("a", ("link", "b")), ("a/evil", b"content")],
    "over a link": [("b", b"content"), ("a", ("link", "b")), ("a", b"content")],
    "a chain": [("d", None), ("d/e", ("link", "..")), ("f", ("link", "d/e/.."))],
    "link for a folder": [("d/x", b"content"), ("d", ("link", "e"))],
    "hard link out": [("a", ("hard", "../../etc/passwd"))],
    "hard link to root": [("a", ("hard", "/etc/passwd"))],
    "hard link through a link": [("a", ("link", "b")), ("c", ("hard", "a/x"))],
    "hard link by a link's parent": [
        ("d", None),
        ("d/up", ("link", "..")),
        ("victim", b"inside"),
        ("a", ("hard", "d/up/../victim")),
    ],
    "hard link by a folder's parent": [("d", None), ("victim", b"inside"), ("a", ("hard", "d/../victim"))],
    "hard link to a folder": [("d", None), ("a", ("hard", "d"))],
    "hard link to nothing": [("a", ("hard", "b"))],
    "character device": [("a", b"3")],
    "block device": [("a", b"4")],
    "pipe": [("a", b"6")],
    "no name": [("", b"content")],
    "backslash": [("..\\evil", b"content")],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tar_is_refused_whole(case: str, tmp_path: Path) -> None:
    archive = tar(tmp_path / "x.tar", ("innocent", b"content"), *HOSTILE[case])
    with pytest.raises(BadInput) as caught:
        unpack(archive, f"{tmp_path}/in/out")
    assert repr(HOSTILE[case][-1][0]) in str(caught.value)
    assert list((tmp_path / "in").iterdir()) == []


def test_a_hard_link_by_the_parent_of_a_link_overwrites_nothing_outside(tmp_path: Path) -> None:
    victim = tmp_path / "in" / "victim"
    victim.parent.mkdir()
    victim.write_text("mine")
    archive = tar(
        tmp_path / "x.tar",
        ("d", None), ("d/up", ("link", "..")), ("victim", b"inside"), ("a", ("hard", "d/up/../victim")), ("a", b"evil"),
    )  # fmt: skip
    with pytest.raises(BadInput, match="hard link"):
        unpack(archive, f"{tmp_path}/in/out")
    assert victim.read_text() == "mine"
    assert os.listdir(victim.parent) == ["victim"]


@pytest.mark.parametrize("moment", ["zipfile.is_zipfile", "trainmaster.data.archives.make_room"])
def test_an_archive_that_is_replaced_while_it_is_unpacked_is_the_one_that_was_checked(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tar(tmp_path / "x.tar", ("a", b"checked"))
    hostile = tar(tmp_path / "y.tar", ("d", ("link", "/etc")), ("a", b"other"))

    def replace(*_: object) -> bool:
        os.replace(hostile, archive)
        return False  # as is_zipfile says of a tar

    monkeypatch.setattr(moment, replace)
    unpack(archive, f"{tmp_path}/out")
    assert contents(tmp_path / "out") == {"a"}
    assert (tmp_path / "out/a").read_bytes() == b"checked"


def test_a_member_that_pythons_own_filter_refuses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(tarfile.TarError):
        pass

    def refuse(member: tarfile.TarInfo, directory: str) -> None:
        raise Refused(member.name)

    for name, value in (("data_filter", refuse), ("FilterError", Refused)):  # from Python 3.11.4 on it has both
        monkeypatch.setattr(tarfile, name, value, raising=False)
    with pytest.raises(BadInput, match=r"'a' of x\.tar is refused by Python's own check"):
        unpack(tar(tmp_path / "x.tar", ("a", b"content")), f"{tmp_path}/out")
    assert os.listdir(tmp_path) == ["x.tar"]


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil"])
def test_a_hostile_zip_is_refused_whole(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr("innocent", "1")
        packed.writestr(name, "content")
    with pytest.raises(BadInput, match="leads out"):
        unpack(f"{tmp_path}/x.zip", f"{tmp_path}/in/out")
    assert list((tmp_path / "in").iterdir()) == []


@pytest.mark.parametrize(("kind", "content"), [(stat.S_IFLNK, "../../etc"), (stat.S_IFIFO, ""), (stat.S_IFBLK, "")])
def test_odd_members_of_a_zip_are_refused(kind: int, content: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        info = zipfile.ZipInfo("odd")
        info.external_attr = (kind | 0o777) << 16
        packed.writestr(info, content)
    with pytest.raises(BadInput, match="odd"):
        unpack(f"{tmp_path}/x.zip", f"{tmp_path}/out")


def zip_link(name: str, target: str | bytes) -> tuple[zipfile.ZipInfo, str | bytes]:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, target


def test_a_file_of_a_zip_that_shares_its_content_with_a_link_does_not_become_one(tmp_path: Path) -> None:
    (tmp_path / "in/outside").mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        link, target = zip_link("p/q/e", "../outside")
        packed.writestr(link, target)
        packed.writestr("d/file", "evil")
        plain = copy.copy(link)
        plain.filename, plain.external_attr = "d", (stat.S_IFREG | 0o644) << 16
        packed.filelist.insert(0, plain)
    with pytest.raises(BadInput, match=r"shares its content with another member|Overlapped entries"):  # Debian's Python
        unpack(f"{tmp_path}/x.zip", f"{tmp_path}/in/out")
    assert os.listdir(tmp_path / "in") == ["outside"]
    assert os.listdir(tmp_path / "in/outside") == []


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["a", "./a", "a/"])
def test_two_members_of_a_zip_with_one_name_are_refused(second: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr("a", "1")
        packed.writestr(second, "")
    with pytest.raises(BadInput, match=f"{second!r} of x.zip is in the archive twice"):
        unpack(f"{tmp_path}/x.zip", f"{tmp_path}/out")


@pytest.mark.parametrize("target", ["a\0b", "a" * 5000])
def test_a_link_of_a_zip_that_leads_to_no_path_is_refused(target: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr(*zip_link("odd", target))
    with pytest.raises(BadInput, match=r"'odd' of x\.zip is a link"):
        unpack(f"{tmp_path}/x.zip", f"{tmp_path}/out")


def test_a_link_of_a_zip_leads_where_its_bytes_say(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr(*zip_link("odd", b"caf\xe9"))
    unpack(f"{tmp_path}/x.zip", f"{tmp_path}/out")
    assert os.readlink(os.fsencode(tmp_path / "out/odd")) == b"caf\xe9"


def test_an_honest_tar(tmp_path: Path) -> None:
    archive = tar(
        tmp_path / "x.tar",
        ("./bin", None),
        ("./bin/run", b"content"),
        ("lib/b", b"other"),
        ("bin/link", ("link", "../lib/b")),
        ("hard", ("hard", "lib/b")),
        ("lib64", ("link", "lib")),
    )
    unpack(archive, f"{tmp_path}/out")
    assert contents(tmp_path / "out") == {"bin/run", "lib/b", "bin/link", "hard"}
    assert (tmp_path / "out/bin/link").read_text() == "other"
    assert (tmp_path / "out/bin/run").stat().st_mode & 0o7777 == 0o755  # no setuid
    assert (tmp_path / "out/hard").read_text() == "other"


def test_an_honest_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr("a/", "")
        info = zipfile.ZipInfo("a/run")
        info.external_attr = (stat.S_IFREG | 0o755) << 16
        packed.writestr(info, "content")
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(link, "a/run")
    unpack(f"{tmp_path}/x.zip", f"{tmp_path}/out")
    assert (tmp_path / "out/link").read_text() == "content"
    assert (tmp_path / "out/a/run").stat().st_mode & 0o777 == 0o755


def test_environments_may_link_to_their_interpreter(tmp_path: Path) -> None:
    archive = tar(tmp_path / "x.tar", ("bin/python", ("link", "/usr/bin/python3")))
    unpack(archive, f"{tmp_path}/out", absolute_links=True)
    assert os.readlink(tmp_path / "out/bin/python") == "/usr/bin/python3"
    archive = tar(tmp_path / "y.tar", ("etc", ("link", "/etc")), ("etc/evil", b"content"))
    with pytest.raises(BadInput, match="through a link"):
        unpack(archive, f"{tmp_path}/more", absolute_links=True)


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08broken"])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(content)
    with pytest.raises(BadInput, match="not an archive"):
        unpack(f"{tmp_path}/x.tar.gz", f"{tmp_path}/out")
    assert not (tmp_path / "out").exists()


def damaged_xz(path: Path) -> None:
    with tarfile.open(path, "w:xz") as packed:
        packed.addfile(tarfile.TarInfo("a"), io.BytesIO(b""))
        info = tarfile.TarInfo("b")
        info.size = 1 << 20
        packed.addfile(info, io.BytesIO(os.urandom(1 << 20)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    path.write_bytes(content)


def damaged_gz(path: Path) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as packed:
        info = tarfile.TarInfo("a")
        info.size = 1 << 20
        packed.addfile(info, io.BytesIO(os.urandom(1 << 20)))
    content = bytearray(path.read_bytes())
    content[1000:3000] = b"\xff" * 2000
    path.write_bytes(content)


def encrypted_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("a", "content")
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flags: bit 0 is encryption
        content[content.index(mark) + offset] |= 1
    path.write_bytes(content)


def zip_with_a_garbled_name(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("\xfc", "content")
    path.write_bytes(path.read_bytes().replace("\xfc".encode(), b"\xff\xff"))


def file_below_a_file(path: Path) -> None:
    tar(path, ("a", b"content"), ("a/b", b"content"))


@pytest.mark.parametrize("make", [damaged_xz, damaged_gz, encrypted_zip, zip_with_a_garbled_name, file_below_a_file])
def test_a_damaged_archive_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "x")
    with pytest.raises(BadInput, match="not an archive that can be read"):
        unpack(f"{tmp_path}/x", f"{tmp_path}/out")
    assert os.listdir(tmp_path) == ["x"]


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    archive = tar(tmp_path / "x.tar", ("large", b"x" * (2 << 20)))
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk", "size=1m"):
        with pytest.raises(DiskFull, match="2 MiB needed, 1 MiB free"):
            unpack(archive, f"{tmp_path}/disk/out")
        assert os.listdir(tmp_path / "disk") == []


def test_what_is_packed_may_be_given_another_name(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    (folder / "conf").mkdir(parents=True)
    for path in (folder / "demo.py", folder / "conf" / "a", tmp_path / "odd#name"):
        path.write_text(path.name)
    packed = pack(
        ["src/demo.py#demo.py", "src/conf#conf", "src/conf#.", "odd#name"], str(tmp_path / "packed"), str(tmp_path)
    )
    with tarfile.open(packed.path) as archive:
        assert sorted(archive.getnames()) == ["a", "conf/a", "demo.py", "odd#name"]


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../../x"])
def test_a_name_outside_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").write_text("a")
    with pytest.raises(BadInput, match="not a name below"):
        pack([f"a#{name}"], str(tmp_path / "packed"), str(tmp_path))


def tar_header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


UNPACK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from trainmaster.core.errors import BadInput
from trainmaster.data import archives
archives._MEMBERS = 1000
try:
    archives.unpack(sys.argv[1], sys.argv[2])
except BadInput as error:
    print(error.message, error.anchor)
"""


@pytest.mark.parametrize(
    ("kind", "first"),
    [(tarfile.GNUTYPE_LONGNAME, 0), (tarfile.XHDTYPE, 0), (tarfile.XGLTYPE, 1), (tarfile.GNUTYPE_LONGLINK, 1)],
)
def test_a_small_archive_with_a_long_header_takes_no_memory(tmp_path: Path, kind: bytes, first: int) -> None:
    with gzip.open(tmp_path / "bomb.tar.gz", "wb", 6) as packed:
        for _ in range(first):
            packed.write(tar_header("a"))
        packed.write(tar_header("././@LongLink", kind, 2 << 30))
        for _ in range(64):
            packed.write(b"a" * (1 << 20))
    done = subprocess.run(
        [sys.executable, "-c", UNPACK, f"{tmp_path}/bomb.tar.gz", f"{tmp_path}/out"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert (
        done.stdout
        == f"{tmp_path}/bomb.tar.gz has headers that are larger than those of an archive can be unsafe-archive\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["tar", "zip"])
def test_an_archive_has_a_most_number_of_members(tmp_path: Path, form: str) -> None:
    archive = tmp_path / f"many.{form}"
    if form == "tar":
        with gzip.open(archive, "wb") as packed:
            for number in range(1001):
                packed.write(tar_header(f"{number:06}"))
            packed.write(bytes(1024))
    else:
        with zipfile.ZipFile(archive, "w") as made:
            for number in range(1001):
                made.writestr(f"{number:06}", b"")
    done = subprocess.run(
        [sys.executable, "-c", UNPACK, f"{archive}", f"{tmp_path}/out"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{archive} has more than 1,000 members unsafe-archive\n"


def test_the_directory_of_a_zip_and_all_headers_of_a_tar_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainmaster.data.archives._ALL_HEADERS", 1 << 17)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        for number in range(10):
            made.writestr(f"{number}" * 30_000, b"")
    with pytest.raises(BadInput, match="has headers that are larger"):
        unpack(f"{tmp_path}/a.zip", f"{tmp_path}/out")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(10):
            tar.addfile(tarfile.TarInfo(f"{number}" * 30_000))
    with pytest.raises(BadInput, match="has more than 0 MiB of headers") as caught:
        unpack(f"{tmp_path}/a.tar", f"{tmp_path}/out")
    assert caught.value.mend == "pack it as several archives"
