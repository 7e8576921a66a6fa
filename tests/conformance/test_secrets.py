"""Secrets: set in the program, and found nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conformance.engines import Engine, role, workers

from trainmaster.core.errors import BadInput
from trainmaster.data.store.stores import store_for
from trainmaster.log.documents.jobs import place_of

VALUE = "s3cr3t-Value-8f2c"


def files_with(value: str, *places: Path) -> list[str]:
    """The files that hold the value, in their bytes or in their name."""
    found = []
    for place in places:
        for folder, _, names in os.walk(place):
            for name in names:
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink() and value.encode() in path.read_bytes():
                    found.append(str(path))
    return found


def test_a_secret_is_in_no_file_no_event_and_no_log(engine: Engine, home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", VALUE)
    engine.write("pw.txt", f"{VALUE}-2\n")
    check = 'test ${#HF_TOKEN} = %d && test ${#DB} = %d && echo both are set; echo "leaked: $HF_TOKEN"; exit 3'
    roles = {"worker": role(check % (len(VALUE), len(VALUE) + 2), env={"HF_TOKEN": None}, restart="never")}
    job = engine.submit(roles, secrets={"DB": {"file": "pw.txt"}})
    job.failed("exit")
    served = "\n".join(job.run.logs())
    assert "both are set" in served
    assert "leaked: " in served
    assert VALUE not in served
    assert VALUE not in str(job.events())
    assert VALUE not in str(job.status())
    for command in (
        ["logs", job.id],
        ["logs", job.id, "worker:0"],
        ["events", job.id],
        ["status", job.id],
        ["wait", job.id],
    ):
        told = engine.tm(*command)
        assert VALUE not in told.stdout + told.stderr, command
    own = [path for path in files_with(VALUE, home.state, home.runtime) if "/logs/worker-0/" not in path]
    assert not own  # what the program itself prints is its own; we serve it redacted
    store = store_for(place_of(job.storage))
    stored = [file for file in store.files() if not file.path.startswith("logs/worker-0")]
    assert stored
    assert not [file.path for file in stored if VALUE.encode() in store.read(file.path, 0, file.size)]


def test_a_secret_is_on_no_command_line(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", VALUE)
    job = engine.submit({"worker": role("echo ready; sleep 1000", env={"HF_TOKEN": None})})
    job.until_line("ready")
    token = (job.storage / "token").read_text()
    lines = engine.command_lines(job)
    assert len(lines) >= 3
    assert not any(VALUE in line or token in line for line in lines)
    job.run.kill()
    job.end()


def test_a_variable_whose_name_is_secret_is_kept_apart(engine: Engine, home) -> None:
    told = {"MY_PASSWORD": VALUE, "URL": f"db://me:{VALUE}@here"}
    job = engine.submit(workers('test "$URL" = "db://me:$MY_PASSWORD@here"', env=told))
    job.succeeded()
    assert not files_with(VALUE, home.state, home.runtime)
    again = engine.tm("retry", job.id)
    assert again.returncode == 2
    assert f"kept nowhere: set the variable, then tm retry {job.id}" in again.stderr


def test_a_variable_that_is_not_set_is_refused(engine: Engine) -> None:
    with pytest.raises(BadInput, match="NOT_SET_ANYWHERE is not set"):
        engine.submit(workers("true", env={"NOT_SET_ANYWHERE": None}))


def test_a_variable_without_a_value_is_the_submitters(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREETING", "good morning")
    job = engine.submit(workers('test "$GREETING" = "good morning"', env={"GREETING": None}))
    job.succeeded()


def test_a_roles_own_secrets_are_its_alone_and_are_covered_in_its_logs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODE", "slow")
    monkeypatch.setenv("DB", "of-every-role")
    reverse = "rev | sed 's/^/reversed: /'"  # a value that is spelled backwards is not covered
    roles = {
        "a": role(f'echo "a $MODE"; echo "$API_KEY" | {reverse}', env={"MODE": None, "API_KEY": VALUE}),
        "b": role(
            f'echo "b $MODE ${{API_KEY-unset}}"; echo "$DB" | {reverse}',
            env={"MODE": "fast", "DB": "own"},
        ),
        "c": role(f'echo "c ${{#DB}} ${{MODE-unset}}"; echo "$API_KEY" | {reverse}', env={"API_KEY": "another-value"}),
    }
    job = engine.submit(roles, secrets=["DB"])
    job.succeeded()
    assert job.lines("a:0") == ["a slow", f"reversed: {VALUE[::-1]}"]
    assert job.lines("b:0") == ["b fast unset", "reversed: nwo"]
    assert job.lines("c:0") == ["c 13 unset", "reversed: eulav-rehtona"]


@pytest.mark.needs("local-data")
def test_files_of_ours_are_private(engine: Engine, home) -> None:
    job = engine.submit(workers("true"))
    job.succeeded()
    for name in ("token", "logs/worker-0/1.log", "job.json"):
        assert job.storage.stat().st_mode & 0o077 == 0 or (job.storage / name).stat().st_mode & 0o077 == 0, name
    assert home.runtime.stat().st_mode & 0o077 == 0


def test_shipped_files_are_private(engine: Engine, home) -> None:
    engine.write(".env", "API_KEY=secret\n")
    engine.submit(workers("cat .env", workdir="copy"), files=["."]).succeeded()
    (archive,) = (home.state / "files").iterdir()
    for path in (home.state, archive.parent, archive):
        assert path.stat().st_mode & 0o077 == 0, path
