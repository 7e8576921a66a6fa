"""What another process has ready for a submission."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from cryptography import x509

from trainmaster.client.jobs.removal import clear, unused_since
from trainmaster.client.submit import ahead
from trainmaster.engines import runtime_archive
from trainmaster.log.storage import draft_of


@pytest.mark.parametrize("dies", [False, True])
def test_all_is_there_though_the_process_dies(tmp_path: Path, dies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_archive, "_archive_bytes", packed)
    made = runtime_archive.archive(tmp_path)
    if dies:
        monkeypatch.setattr(ahead, "_certificate", lambda: signal.pause())
    ahead.begin("yarn")
    assert ahead._coming is not None
    pid = ahead._coming[0]
    if dies:
        os.kill(pid, signal.SIGKILL)
        monkeypatch.undo()
    certificate, key = ahead.certificate_and_key()
    assert x509.load_pem_x509_certificate(certificate.encode()).subject.rfc4514_string() == "CN=trainmaster"
    assert "PRIVATE KEY" in key
    if not dies:
        monkeypatch.setattr(runtime_archive, "files", lambda *_: pytest.fail("the other process has looked at them"))
    assert ahead.runtime(tmp_path, "yarn") == made
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def packed(files: Sequence[tuple[str, str]]) -> bytes:
    return b"the runtime"


@pytest.mark.parametrize("damage", [b"", b"the run"])
def test_a_damaged_archive_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    monkeypatch.setattr(runtime_archive, "_archive_bytes", packed)
    made = runtime_archive.archive(tmp_path)
    for known in ("", made.parent.name):
        made.write_bytes(damage)
        assert runtime_archive.archive(tmp_path, known) == made
        assert made.read_bytes() == b"the runtime"


def test_threads_that_make_the_archive_at_once_have_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Barrier(2)
    rename = Path.rename

    def together(draft: Path, target: Path) -> Path:
        written.wait(60)
        return rename(draft, target)

    monkeypatch.setattr(runtime_archive, "_archive_bytes", packed)
    monkeypatch.setattr(Path, "rename", together)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: runtime_archive.archive(tmp_path), range(2))
    assert first == second
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    assert first.read_bytes() == b"the runtime"


def test_an_archive_that_jobs_use_is_not_pruned_and_drafts_go(home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_archive, "_archive_bytes", packed)
    folder = home.state / "runtime"
    draft = Path(draft_of(str(folder / "state" / "archive")))  # of one that was killed
    draft.parent.mkdir(parents=True)
    draft.touch()
    os.utime(draft, (0, 0))
    made = runtime_archive.archive(folder)
    assert not draft.exists()
    for entry in folder.iterdir():
        os.utime(entry, (0, 0))
    (used,) = (entry for entry in unused_since(1.0) if entry.place == str(made.parent))
    assert runtime_archive.archive(folder, known=made.parent.name) == made
    assert str(made.parent) not in [entry.place for entry in unused_since(time.time() - 60)]
    assert not clear(used), "a job has taken it since it was listed"
    assert made.exists()


def test_the_archive_has_the_package_of_the_jobs_engine_and_the_way_to_it() -> None:
    """Else neither a container nor a master would find an engine that another package adds."""
    built_in = dict(runtime_archive.files(engine="yarn"))
    added = dict(runtime_archive.files(engine="netns"))
    more = {name for name in added if name not in built_in}
    assert more >= {"trainmaster_netns/__init__.py", "trainmaster_netns/engine.py"}
    (points,) = (name for name in more if name.endswith("/entry_points.txt"))
    assert "netns = trainmaster_netns:ENGINE" in Path(added[points]).read_text()
    assert all(name.startswith("trainmaster_netns") for name in more), "nothing else"
