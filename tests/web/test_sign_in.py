"""How `tm ui` opens the browser of its user, on a machine that others use too."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from waiting import until

from trainmaster.host import linux

if TYPE_CHECKING:
    from web.conftest import NewPage

pytestmark = pytest.mark.xdist_group("browser")


def command_lines() -> str:
    lines = []
    for process in linux.everyone():
        try:
            lines.append(Path(f"/proc/{process.pid}/cmdline").read_bytes().decode(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(lines)


def test_the_browser_signs_in_and_no_command_line_has_the_code(new_page: NewPage, tmp_path: Path, home) -> None:
    """Another user of the machine read it there, and signed in first."""
    opened, script = tmp_path / "opened", tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\nexec sleep 1000\n')
    script.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "trainmaster.cli", "ui"], stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "BROWSER": f"{script} %s"},
    ) as serving:  # fmt: skip
        try:
            assert serving.stdout is not None
            address = serving.stdout.readline().strip()
            code = address.partition("?code=")[2]
            assert code
            until(opened.exists, what="the browser")
            assert code not in command_lines()
            url = opened.read_text().strip()
            file = Path(unquote(urlsplit(url).path))
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            page = new_page()
            page.goto(url)
            page.wait_for_url(f"http://{urlsplit(address).netloc}/")
            page.get_by_role("heading", name="Jobs", exact=True).wait_for()
            until(lambda: not file.exists(), what="the removal of the file")
            page.close()
        finally:
            os.killpg(serving.pid, signal.SIGKILL)
