"""What each release has stored of a job (tests/releases, made by tools/stored-job) is read by today's commands and pages, and continued."""

from __future__ import annotations

import http.cookiejar
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from trainmaster import __version__

TM = [sys.executable, "-m", "trainmaster.cli"]
RELEASES = Path(__file__).parents[1] / "releases"
TOP = "/kept"  # as tools/stored-job writes it
VERSIONS = sorted(path.name for path in RELEASES.iterdir() if path.name != "job")


@pytest.fixture(params=VERSIONS)
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that a release's job ran in, with its state directory."""
    folder = tmp_path / "kept"
    shutil.copytree(RELEASES / request.param, folder)
    for path in folder.rglob("*"):
        if path.is_file() and TOP.encode() in (content := path.read_bytes()) and path.suffix != ".gz":
            path.write_bytes(re.sub(rf"(?<![\w-]){TOP}(?![\w-])".encode(), str(folder).encode(), content))
    monkeypatch.setenv("TRAINMASTER_STATE_DIR", str(folder / "state"))
    return folder


def tm(text: str, folder: Path) -> str:
    done = subprocess.run(
        [*TM, *text.split()],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done
    assert not re.search("Traceback|damaged|unknown", done.stdout + done.stderr), done
    return done.stdout


def test_this_version_s_storage_is_kept() -> None:
    assert __version__ in VERSIONS, "run tools/stored-job"


def test_each_command_reads_it(folder: Path) -> None:
    (job,) = (path.name for path in (folder / "state" / "jobs").iterdir())
    assert re.search(rf"{job} +succeeded", tm("list", folder))
    (folder / "state" / "index.json").unlink()
    assert re.search(rf"{job} +succeeded", tm("list", folder))
    assert "after 1 restart" in tm(f"status {job}", folder)
    events = [json.loads(line)["type"] for line in tm(f"events --json {job}", folder).splitlines()]
    assert {"submitted", "incident", "rewound", "shards-done", "checkpoint-saved", "output-committed", "ended"} <= {
        *events
    }
    assert "worker:0 exited with status 1" in tm(f"events {job}", folder)
    assert "fails once" in tm(f"logs {job} worker:0 --attempt 1", folder)
    assert "2 of 2 shards counted exactly once, 5 records" in tm(f"audit {job}", folder)
    tm(f"wait {job}", folder)
    tm(f"export {job} exported", folder)
    assert "succeeded" in (folder / "exported" / "index.html").read_text()
    assert "fails once" in (folder / "exported" / "logs" / "worker-0" / "1.txt").read_text()
    assert "metric.sum" in (folder / "exported" / "metrics.json").read_text()
    tm("prune --keep 1 --dry-run", folder)
    tm(f"remove {job}", folder)
    assert not (folder / "state" / "jobs" / job).exists()


def test_its_page_is_shown(folder: Path) -> None:
    (job,) = (path.name for path in (folder / "state" / "jobs").iterdir())
    with subprocess.Popen([*TM, "ui", "--no-browser", job], stdout=subprocess.PIPE, text=True) as ui:
        try:
            assert ui.stdout is not None
            address = ui.stdout.readline().split()[-1]
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
            with browser.open(address, timeout=60) as page:
                text = page.read().decode()
        finally:
            ui.terminate()
    assert 'data-state="succeeded"' in text
    assert "worker:0" in text


def test_the_job_is_run_again_from_its_checkpoint(folder: Path) -> None:
    (job,) = (path.name for path in (folder / "state" / "jobs").iterdir())
    assert "begins after step 5 with the sum 15" in tm(f"retry {job}", folder)
    assert (folder / "out" / "worker-0" / "sum").read_text() == "30\n"
