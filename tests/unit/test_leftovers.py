"""The watch over what tests leave behind sees what it must see."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import leftovers
import pytest
from waiting import until

FOREVER = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]


@pytest.mark.parametrize("environment", [None, {}], ids=["marked", "without the mark"])
def test_a_process_is_seen(home, tmp_path: Path, environment) -> None:
    with subprocess.Popen(FOREVER, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert list(leftovers.marked(home.mark, [tmp_path])) == [process.pid]
        assert process.pid in leftovers.children()
        assert leftovers.wait_gone(home.mark, [tmp_path], patience=0).keys() == {process.pid}
        until(lambda: process.poll() is not None)
    assert not leftovers.marked(home.mark, [tmp_path])


def test_a_listening_port_is_seen() -> None:
    before = leftovers.listening()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert leftovers.listening() - before == {f"tcp port {server.getsockname()[1]}"}
    assert leftovers.listening() == before


def test_files_of_the_runtime_directory_are_seen(home) -> None:
    (home.runtime / "ledger.sqlite").touch()
    (home.runtime / "ledger.sqlite-journal").touch()
    assert leftovers.runtime_files(home.runtime) == []
    (home.runtime / "digits-abcdef").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home.runtime / "digits-abcdef" / "master.sock"))
        assert leftovers.runtime_files(home.runtime) == ["digits-abcdef/master.sock"]
    os.unlink(home.runtime / "digits-abcdef" / "master.sock")
