"""What puts a pod together: archives of every kind are unpacked alike."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from trainmaster.engines.kubernetes.boot import unpack


def tar(mode: str, *, link: bool = False) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=f"w{mode}") as archive:  # type: ignore[call-overload]
        for name, content, bits in (
            ("run", b"#!/bin/sh\n", 0o775),
            ("lib/deep/a.py", b"x" * 100_000, 0o644),
            ("empty", b"", 0o600),
        ):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(content), bits, 1_700_000_000
            archive.addfile(member, io.BytesIO(content))
        if link:
            member = tarfile.TarInfo("again")
            member.type, member.linkname = tarfile.SYMTYPE, "run"
            archive.addfile(member)
    return made.getvalue()


@pytest.mark.parametrize("mode", ["", ":gz", ":xz"])
@pytest.mark.parametrize("link", [False, True])
def test_a_tar_is_unpacked(tmp_path: Path, mode: str, link: bool) -> None:
    unpack(tar(mode, link=link), str(tmp_path / "there"))
    found = {
        str(path.relative_to(tmp_path / "there")): path for path in (tmp_path / "there").rglob("*") if path.is_file()
    }
    assert sorted(found) == sorted(["run", "lib/deep/a.py", "empty", *(["again"] if link else [])])
    assert found["lib/deep/a.py"].read_bytes() == b"x" * 100_000
    assert {name: found[name].stat().st_mode & 0o777 for name in ("run", "empty")} == {"run": 0o755, "empty": 0o600}
    assert found["run"].stat().st_mtime == 1_700_000_000
    assert not link or os.readlink(found["again"]) == "run"


def test_a_zip_is_unpacked(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a/b", "c")
    unpack(made.getvalue(), str(tmp_path / "there"))
    assert (tmp_path / "there/a/b").read_text() == "c"


def test_what_would_leave_the_folder_does_not(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../out"))
    if hasattr(tarfile, "tar_filter"):
        with pytest.raises(tarfile.OutsideDestinationError):
            unpack(made.getvalue(), str(tmp_path / "there"))
        assert not (tmp_path / "out").exists()
