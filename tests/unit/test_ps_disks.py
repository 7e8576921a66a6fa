"""Parameter servers whose disk is full, or whose first checkpoint is not written yet when they end."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
from parameter_servers import ASYNCHRONOUS, Model, Servers, assert_holds, await_checkpoint, define, push_some, servers
from waiting import until

from trainmaster.agent.attempt.faults import ERROR_FILE, recorded
from trainmaster.ps.errors import InUse
from trainmaster.ps.optimizers import Adam
from trainmaster.ps.peers import Settings
from trainmaster.ps.server import Server
from trainmaster.ps.specification import TableSpec, Updates
from trainmaster.ps.storage.locks import take_lock
from trainmaster.ps.tables.memory import VARIABLE


def test_a_full_disk_ends_a_server_which_goes_on_once_there_is_room(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(22), Model(Adam(0.01))
    with servers(tmp_path, 2) as group, group.client() as client:
        define(client)
        push_some(client, model, generator, 5)
        log = max(path.stat().st_size for path in (group.directory / "journal" / "1-of-2").iterdir())
        resource.prlimit(
            group.processes[1].pid, resource.RLIMIT_FSIZE, (log + 100, log + 100)
        )  # as a disk that is full
        with ThreadPoolExecutor(1) as pool:
            pushed = pool.submit(push_some, client, model, generator, 5)
            assert group.processes[1].wait(60) == 1
            assert "ps: [Errno 27] File too large" in group.log(1)
            assert not pushed.done()
            group.begin(1)
            pushed.result(60)
        assert_holds(client, model)


def test_a_share_that_cannot_be_written_costs_its_checkpoint_alone(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(23), Model(Adam(0.01))
    with servers(tmp_path, 2) as group, group.client() as client:
        define(client)
        push_some(client, model, generator, 5)
        obstacle = group.directory / "version-5" / "variables-1-of-2.ckpt.part"
        obstacle.mkdir(parents=True)
        assert client.checkpoint() == 5
        until(lambda: client.status()[1]["unsaved"] == 5, what=lambda: group.log(1))
        assert "ps: the checkpoint of version 5 failed: [Errno 21] Is a directory" in group.log(1)
        obstacle.rmdir()
        until(lambda: client.checkpoint() == 5 and client.status()[0]["completed"] == 5)
        push_some(client, model, generator, 2)
        await_checkpoint(client, client.checkpoint())
        assert_holds(client, model)


def owned_by(job: str) -> dict[str, str]:
    return {"TRAINMASTER_JOB": job, "TRAINMASTER_ROLE": "ps"}


@pytest.mark.parametrize("count", [1, 2])
def test_a_server_says_which_other_job_has_its_directory_and_goes_on_once_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Also a server among another number of servers than that job's."""
    model = Model(Adam(0.01))
    for name, value in owned_by("j-first").items():
        monkeypatch.setenv(name, value)
    with servers(tmp_path, 1) as first, first.client() as client:
        define(client)
        push_some(client, model, numpy.random.default_rng(24), 3)
        monkeypatch.setenv("TRAINMASTER_JOB", "j-second")
        second = Servers(tmp_path, count, token="the second job's")
        try:
            begun = len(first.log(0)) if count == 1 else 0  # both jobs' servers write to one file
            second.begin(count - 1)
            line = (
                rf"ps: {tmp_path}/ckpt/journal/0-of-1 is in use by ps:0 of job j-first \(process {first.processes[0].pid} on .+\):"
                r" waiting for its end, for 60 s at most\n"
            )
            until(lambda: re.fullmatch(line, second.log(count - 1)[begun:]), what=lambda: second.log(count - 1))
            first.kill()
            if count == 2:
                second.begin(0)
            with second.client() as other:
                define(other)
                assert_holds(other, model)
        finally:
            second.end()


def test_a_server_that_is_to_end_while_it_begins_says_so_and_a_second_signal_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in owned_by("j-first").items():
        monkeypatch.setenv(name, value)
    with servers(tmp_path, 1) as first, first.client() as client:
        define(client)
        monkeypatch.setenv("TRAINMASTER_JOB", "j-second")
        second = Servers(tmp_path, 2, token="the second job's", flags=("--leave",))
        try:
            second.begin(1)
            until(lambda: "waiting for its end" in second.log(1), what=lambda: second.log(1))
            second.processes[1].terminate()
            until(lambda: "ps: this server ends once it has its rows" in second.log(1), what=lambda: second.log(1))
            assert second.processes[1].poll() is None
            second.processes[1].terminate()
            assert second.processes[1].wait(60) == -signal.SIGTERM
        finally:
            second.end()


def test_another_job_that_does_not_end_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    for name, value in owned_by("j-first").items():
        monkeypatch.setenv(name, value)
    folder = str(tmp_path / "0-of-1")
    first = take_lock(folder, lines.append)
    monkeypatch.setenv("TRAINMASTER_JOB", "j-second")
    why = rf"{folder} is in use by ps:0 of job j-first \(process {os.getpid()} on .+\), which has not ended within 0.1 s: end that job"
    with pytest.raises(InUse, match=why):
        take_lock(folder, lines.append, patience=0.1)
    monkeypatch.setenv("TRAINMASTER_JOB", "j-first")
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(take_lock, folder, lines.append, patience=0.1)
        until(lambda: lines)  # its own former process is waited for, however long
        assert lines == [
            f"{folder} is in use by this job's former ps:0 (process {os.getpid()} on {socket.gethostname()}): waiting for its end"
        ]
        os.close(first)
        os.close(taken.result(60))


def test_a_checkpoint_that_does_not_fit_into_the_memory_is_refused_with_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers have what one has no memory for, whether it goes on in their directory or begins from it."""
    rows = 3 * 2**14  # of 1036 bytes
    tables = {"wide": TableSpec(256)}
    with servers(tmp_path, 2) as group, group.client() as client:
        client.define({}, tables, {"name": "SGD"}, ASYNCHRONOUS)
        client.pull(rows={"wide": numpy.arange(rows)})
        await_checkpoint(client, client.checkpoint())
    monkeypatch.setenv(VARIABLE, str(72 * 2**20))  # half of it is Python and NumPy
    monkeypatch.setenv(ERROR_FILE, str(tmp_path / "error.json"))
    refusal = (
        r"ps: server 0 of 1 has no memory for its part of the checkpoint of version 0: that takes 49 MiB,"
        r" and [123]?\d MiB are left for rows: give it more memory, or begin with more servers\n"
    )
    (tmp_path / "apart").mkdir()
    for folder, flags in ((tmp_path, ()), (tmp_path / "apart", ("--init", str(group.directory)))):
        with servers(folder, 1, flags=flags) as one:
            assert one.processes[0].wait(60) == 1
            assert re.fullmatch(refusal, one.log(0)), one.log(0)
        assert "server 0 of 1 has no memory" in recorded(str(tmp_path / "error.json")), (
            "another attempt would end so too"
        )
    with servers(tmp_path, 3) as group, group.client() as client:
        assert client.ids("wide").tolist() == list(range(rows))


def test_a_share_that_was_written_stays_though_its_server_comes_back(tmp_path: Path) -> None:
    """Server 0 may have it in the manifest. Rows that were pulled alone are in it, and in no log."""
    generator, model = numpy.random.default_rng(27), Model(Adam(0.01))
    with servers(tmp_path, 2) as group, group.client() as client:
        define(client)
        push_some(client, model, generator, 5)
        client.pull(rows={"user": range(100, 200)})
        obstacle = group.directory / "version-5" / "variables-0-of-2.ckpt.part"
        obstacle.mkdir(parents=True)
        assert client.checkpoint() == 5
        share = group.directory / "version-5" / "variables-1-of-2.ckpt"
        until(share.exists)
        written = share.stat().st_ino
        group.kill(0)
        obstacle.rmdir()
        group.kill(1)
        group.begin()
        await_checkpoint(client, 5)
        assert share.stat().st_ino == written
        group.kill()
        group.begin()
        assert_holds(client, model)


def test_a_share_that_failed_is_reported_to_a_server_0_that_comes_back(tmp_path: Path) -> None:
    """It waits for the shares of its log again, and would make no other checkpoint meanwhile."""
    with servers(tmp_path, 2) as group, group.client() as client:
        define(client)
        obstacle = group.directory / "version-0" / "variables-1-of-2.ckpt.part"
        obstacle.mkdir(parents=True)
        assert client.checkpoint() == 0
        until(lambda: client.status()[1]["unsaved"] == 0)
        group.kill(0)
        group.begin(0)
        obstacle.rmdir()
        until(lambda: client.checkpoint() == 0 and all(server["completed"] == 0 for server in client.status()))


def test_a_server_that_ends_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(24), Model(Adam(0.01))
    with servers(tmp_path / "first", 1) as group, group.client() as client:
        define(client)
        push_some(client, model, generator, 4)
        await_checkpoint(client, client.checkpoint())
    obstacle = tmp_path / "next" / "ckpt" / "version-4"
    obstacle.parent.mkdir(parents=True)
    obstacle.touch()
    with servers(tmp_path / "next", 1, flags=("--init", str(group.directory))) as group:
        assert group.processes[0].wait(60) == 1
        assert "ps: the checkpoint of version 4 failed: " in group.log(0)
        assert "Traceback" not in group.log(0)
        obstacle.unlink()
        group.begin()
        with group.client() as client:
            define(client)
            assert_holds(client, model)


def test_logs_alone_come_back_onto_another_number_of_servers(tmp_path: Path) -> None:
    generator, model = numpy.random.default_rng(25), Model(Adam(0.01))
    with servers(tmp_path, 2) as group, group.client() as client:
        define(client)
        push_some(client, model, generator, 5)
    with servers(tmp_path, 3) as group, group.client(attempt=2) as client:
        group.kill()  # while they settle, perhaps
        group.begin()
        define(client)
        assert_holds(client, model)
        push_some(client, model, generator, 2)
        assert_holds(client, model)


def test_pushes_that_wait_for_others_make_a_version_at_the_end(tmp_path: Path) -> None:
    model = Model(Adam(0.01))
    with servers(tmp_path, 2, has_files=False) as group, group.client() as client:
        define(client, Updates(grads_to_wait=3))
        gradient = numpy.ones(3, numpy.float32)
        for _ in range(2):
            assert client.push(0, {"bias": gradient}) == 0
        assert client.flush() == 1
        assert client.flush() == 1
        model.push({"bias": gradient}, {})
        assert_holds(client, model)


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    with servers(tmp_path, 1, token="") as group:
        assert group.processes[0].wait(60) == 2
        assert "is empty, and would let everybody in" in group.log(0)


@pytest.mark.parametrize("count", [1, 2])
def test_server_0_keeps_the_newest_entries_in_memory_for_others_and_reads_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr("trainmaster.ps.server._KEPT", 2)
    server = Server(Settings(0, count, "token", directory=str(tmp_path)))
    try:
        for number in range(9):
            server.add({"attempt": ["worker:0", number]})
        if count == 1:
            assert not server._entries, "nobody asks for them"
        else:
            assert len(server._entries) <= 4
            for after in range(10):
                assert [entry["sequence"] for entry in server._entries_behind(after)] == list(range(after + 1, 10))
    finally:
        server._close()
