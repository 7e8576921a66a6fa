"""What pyproject.toml declares of other packages is true: the core works with the lowest versions that it allows, and with the newest.

The environments are those of `make versions`. Their `tm` runs as a user's does: submit, run, look at the page, kill.
"""

from __future__ import annotations

import os
import subprocess
import urllib.request
from pathlib import Path

import pytest
from conformance.engines import LIMIT
from waiting import until

ROOT = Path(__file__).parent.parent.parent
OPTIONAL = (
    "import obstore, hdfs_native, pyarrow.parquet, sqlalchemy, mlflow, opentelemetry.sdk.trace;"
    "import opentelemetry.exporter.otlp.proto.http.trace_exporter"
)

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("versions")]


@pytest.fixture(params=["lowest-direct", "highest"])
def environment(request: pytest.FixtureRequest) -> Path:
    made = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    goal = Path(".venv") / f"versions-{request.param}" / ".installed"
    subprocess.run(["make", str(goal)], cwd=ROOT, env=made, check=True, timeout=LIMIT)
    return ROOT / goal.parent / "bin"


def test_the_core_works_with_these_versions(environment: Path, home: object, tmp_path: Path) -> None:
    subprocess.run([environment / "python", "-c", OPTIONAL], check=True, timeout=LIMIT)

    def tm(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [environment / "tm", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
        )

    (tmp_path / "rows.txt").write_text("".join(f"{number}\n" for number in range(100)))
    (tmp_path / "job.yaml").write_text(
        "name: lines\n"
        "roles: {worker: {command: 'mkdir -p out; cat > out/seen', replicas: 2}}\n"
        "inputs: {rows: {url: rows.txt, as: stream}}\n"
        "outputs: {out: {url: kept}}\n"
    )
    ran = tm("run", "job.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    seen = [line for path in (tmp_path / "kept").rglob("seen") for line in path.read_text().split()]
    assert sorted(map(int, seen)) == list(range(100))

    job = tm("submit", "--", "sh", "-c", "echo hello; exec sleep 1000").stdout.split()[0]
    until(lambda: "hello" in tm("logs", job).stdout, what="its first line")
    command, environ = [environment / "tm", "ui", job, "--no-browser"], {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as serving:
        try:
            assert serving.stdout is not None
            address = serving.stdout.readline().strip()
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            assert "worker:0" in browser.open(address, timeout=LIMIT).read().decode()
        finally:
            serving.terminate()
    killed = tm("kill", job)
    assert killed.returncode == 0, killed.stderr
    assert "killed" in tm("status", job).stdout
