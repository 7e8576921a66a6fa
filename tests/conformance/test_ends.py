"""How jobs end: the state, the reason in words, what restarts and what it costs."""

from __future__ import annotations

import getpass

import pytest
from conformance.engines import Engine, python, role, workers

ONCE = 'test "$TRAINMASTER_ATTEMPT" != 1 || { echo "attempt 1 fails"; exit 3; }; echo "attempt $TRAINMASTER_ATTEMPT"'


@pytest.mark.brief
def test_success(engine: Engine) -> None:
    job = engine.submit(workers("echo out of $TRAINMASTER_INDEX; echo err >&2", 2))
    status = job.succeeded()
    assert [task["state"] for task in status["tasks"]] == ["succeeded", "succeeded"]
    assert status["restarts"] == 0
    assert sorted(job.lines("worker:1")) == ["err", "out of 1"]
    assert sorted(job.run.logs()) == ["worker:0 err", "worker:0 out of 0", "worker:1 err", "worker:1 out of 1"]
    assert engine.tm("wait", job.id).returncode == 0


@pytest.mark.brief
def test_failure(engine: Engine) -> None:
    roles = workers("echo before; echo the cause >&2; exit 7", restart={"scope": "never"})
    job = engine.submit(roles)
    reason = job.failed("exit")
    assert reason["words"] == "exited with status 7"
    assert reason["task"] == "worker:0"
    assert reason["tail"][-1] == "the cause"
    waited = engine.tm("wait", job.id)
    assert waited.returncode == 1
    told = waited.stdout + waited.stderr
    assert "worker:0" in told
    assert "exited with status 7" in told
    assert "the cause" in told


HEARS = python("""
    import signal
    signal.signal(signal.SIGUSR1, lambda *_: print("heard"))
    signal.signal(35, lambda *_: print("heard in real time"))
    print("ready")
    while True:
        signal.pause()
""")


@pytest.mark.brief
def test_a_user_s_signals_reach_the_program_and_are_on_record(engine: Engine) -> None:
    job = engine.submit(workers(HEARS, restart={"scope": "never"}))
    job.until_line("ready")
    sent = engine.tm("kill", job.id, "worker:0", "--signal", "USR1")
    assert sent.returncode == 0, sent.stderr
    job.until_line("heard")
    assert engine.tm("kill", job.id, "worker:0", "--signal", "35").returncode == 0
    job.until_line("heard in real time")
    assert engine.tm("dump", job.id, "worker:0").returncode == 0
    job.until_line("waits in")
    job.run.signal("worker:0", "TERM")
    user = f"user {getpass.getuser()}"
    assert job.failed("killed-by-user")["words"] == f"was killed by SIGTERM, sent by {user}"
    acts = [(event["by"], event["action"], event["task"], event["detail"]) for event in job.told("user-acted")]
    assert acts == [(user, action, "worker:0", detail) for action, detail in ACTS]


ACTS = [("signal", "SIGUSR1"), ("signal", "SIGRTMIN+1"), ("dump", ""), ("signal", "SIGTERM")]


@pytest.mark.needs("second-master")
def test_a_signal_waits_for_the_next_master(engine: Engine) -> None:
    job = engine.submit(workers(HEARS))
    job.until_line("ready")
    engine.kill_master(job)
    job.run.signal("worker:0", "USR1")
    job.until_line("heard")
    job.run.kill()
    job.end()


def test_a_task_restarts_alone(engine: Engine) -> None:
    flaky = f'test "$TRAINMASTER_INDEX" = 0 || {{ {ONCE}; }}; echo generation $TRAINMASTER_GENERATION'
    job = engine.submit(workers(flaky, 2, restart={"scope": "task", "limit": 1}))
    status = job.succeeded()
    assert status["restarts"] == 1
    assert [task["attempt"] for task in status["tasks"]] == [1, 2]
    assert job.lines("worker:1", 1) == ["attempt 1 fails"]  # each attempt's output is kept
    assert job.lines("worker:1", 2)[0] == "attempt 2"
    assert job.task("worker:1")["past"][0]["words"] == "exited with status 3"


@pytest.mark.brief
@pytest.mark.needs("logs-of-the-stopped")
def test_a_group_restarts_whole(engine: Engine) -> None:
    program = python("""
        import os, signal, sys, time
        index, attempt = os.environ["TRAINMASTER_INDEX"], int(os.environ["TRAINMASTER_ATTEMPT"])
        print("generation", os.environ["TRAINMASTER_GENERATION"], "restarts", os.environ["TRAINMASTER_RESTARTS"])
        if attempt == 1:
            if index == "0":
                open(os.environ["PRINTED"], "w").close()
                signal.pause()
            while not os.path.exists(os.environ["PRINTED"]):
                time.sleep(0.02)
            sys.exit(3)
    """)
    env = {"PRINTED": str(engine.folder / "printed")}
    job = engine.submit(workers(program, 2, restart={"scope": "group", "limit": 1}, env=env))
    status = job.succeeded()
    assert status["restarts"] == 1  # one root cause, one restart
    assert [task["attempt"] for task in status["tasks"]] == [2, 2]
    assert job.lines("worker:0", 1) == ["generation 1 restarts 0"]
    assert job.lines("worker:0", 2) == ["generation 2 restarts 1"]
    assert [past["reason"] for past in job.task("worker:0")["past"]] == ["peer-failed"]
    assert [past["reason"] for past in job.task("worker:1")["past"]] == ["exit"]


@pytest.mark.parametrize("scope", ["task", "group"])
def test_the_budget_is_spent(engine: Engine, scope: str) -> None:
    """Also by a program that gets to the same place each time."""
    command = "echo attempt $TRAINMASTER_ATTEMPT; echo reporter progress:0.42; exit 4"
    job = engine.submit(workers(command, restart={"scope": scope, "limit": 2}))
    assert job.failed("exit")["words"] == "exited with status 4"
    assert job.task("worker:0")["attempt"] == 3
    assert [job.lines("worker:0", n)[0] for n in (1, 2, 3)] == ["attempt 1", "attempt 2", "attempt 3"]


def test_never(engine: Engine) -> None:
    job = engine.submit(workers("exit 4", restart={"scope": "never"}))
    job.failed("exit")
    assert job.task("worker:0")["attempt"] == 1


def test_progress_gives_the_budget_back(engine: Engine) -> None:
    program = 'echo "reporter progress:0.$TRAINMASTER_ATTEMPT" >&2; test $TRAINMASTER_ATTEMPT = 5 || exit 1'
    job = engine.submit(workers(program, restart={"scope": "task", "limit": 1}))
    assert job.succeeded()["tasks"][0]["attempt"] == 5


def test_the_first_task_of_a_role_is_enough(engine: Engine) -> None:
    roles = {"worker": role("sleep 1000", 2), "chief": role("echo done")}
    job = engine.submit(roles, completion={"first": "chief"})
    status = job.succeeded()
    states = {task["task"]: task["state"] for task in status["tasks"]}
    assert states == {"worker:0": "killed", "worker:1": "killed", "chief:0": "succeeded"}
    assert job.task("worker:0")["reason"] == "not-needed"


@pytest.mark.parametrize(("failing", "state"), [(1, "succeeded"), (3, "failed")])
def test_some_tasks_may_fail(engine: Engine, failing: int, state: str) -> None:
    roles = workers(f"test $TRAINMASTER_INDEX -ge {failing}", 4, restart={"scope": "never"})
    job = engine.submit(roles, completion={"failures": 0.5})
    status = job.end()
    assert status["state"] == state, job.story(status)
    if state == "failed":
        assert status["reason"]["reason"] == "too-many-failures"
        assert "3 of 4" in status["reason"]["words"]
    else:
        assert [task["state"] for task in status["tasks"]] == ["failed", *["succeeded"] * 3]


def test_the_first_failure_is_told_not_its_consequences(engine: Engine) -> None:
    """One rank dies, its peer then fails for want of it: the user reads of the first."""
    program = python("""
        import os, socket, sys, time
        from trainmaster import runtime
        task = runtime.task()
        first = task.peers["worker"][0]
        where = first["address"], first["ports"]["meet"]
        if task.index == 0:
            listening = socket.create_server(("", where[1]))
            peer, _ = listening.accept()
            assert not peer.recv(1)
            sys.exit("lost my peer")
        while True:
            try:
                line = socket.create_connection(where)
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        os.kill(os.getpid(), 9)
    """)
    job = engine.submit(workers(program, 2, ports=["meet"], restart={"scope": "group", "limit": 0}), gang=True)
    reason = job.failed("signal")
    assert reason["task"] == "worker:1"
    assert reason["words"] == "was killed by SIGKILL"


def test_killed_by_a_signal(engine: Engine) -> None:
    job = engine.submit(workers("kill -SEGV $$", restart={"scope": "never"}))
    assert job.failed("signal")["words"] == "was killed by SIGSEGV"


def test_memory_that_is_gone_is_told_as_that(engine: Engine) -> None:
    program = python("""
        import mmap
        with open("mapped", "wb+") as file:
            file.truncate(4096)
            memory = mmap.mmap(file.fileno(), 4096)
            file.truncate(0)
            memory[0]
    """)
    reason = engine.submit(workers(program, restart={"scope": "never"})).failed("signal")
    assert reason["words"] == "was killed by SIGBUS"
    assert "/dev/shm may be full, or a file that it had mapped was cut short" in reason["advice"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo Terminating; exit 143", "exited with status 143"),
        ("sh -c 'kill -9 $$'; exit $?", "was killed by SIGKILL"),
        ("sh -c 'kill -35 $$'; exit $?", "was killed by SIGRTMIN+1"),
    ],
)
def test_a_text_that_exits_as_if_killed_is_called_killed_where_its_program_was(
    engine: Engine, command: str, words: str
) -> None:
    job = engine.submit(workers(command, restart={"scope": "never"}))
    status = job.end()
    assert (status["state"], status["reason"]["words"]) == ("failed", words), job.story(status)


@pytest.mark.brief
def test_out_of_memory_says_how_much(engine: Engine) -> None:
    program = python("""
        kept = []
        while True:
            kept.append(b"x" * (4 << 20))
    """)
    roles = {"worker": {"command": program, "resources": {"cores": 0.05, "memory": "96MiB"}, "restart": "never"}}
    reason = engine.submit(roles).failed("out-of-memory")
    assert "96 MiB" in reason["words"]
    assert reason["figures"]["limit"] == 96 << 20
    assert reason["figures"]["used"] >= 90 << 20
    assert "roles.worker.resources.memory" in reason["advice"]


def test_more_memory_after_out_of_memory(engine: Engine) -> None:
    # An engine that looks now and then must have the time to.
    program = python(
        """
        import os, time
        kept = b"x" * (100 << 20)
        time.sleep(60 if os.environ["TRAINMASTER_ATTEMPT"] == "1" else 0)
        print(len(kept))
        """
    )
    roles = {"worker": {"command": program, "resources": {"cores": 0.05, "memory": "80MiB"}, "retry_memory": 2}}
    job = engine.submit(roles)
    job.succeeded()
    assert job.task("worker:0")["past"][0]["reason"] == "out-of-memory"


@pytest.mark.parametrize(
    ("command", "reason", "words"),
    [
        (["no-such-program", "-x"], "command-not-found", "the command no-such-program was not found"),
        (["./not-there"], "command-not-found", "the command ./not-there was not found"),
        (["./plain"], "not-executable", "the command ./plain cannot be executed"),
        ("no-such-program -x", "command-not-found", "no-such-program"),
    ],
)
def test_a_command_that_cannot_run(engine: Engine, command: list[str] | str, reason: str, words: str) -> None:
    engine.write("plain", "no program\n")
    job = engine.submit(
        workers(command, prepare="true")
    )  # after which anything may be there: it is not known at submit
    assert words in job.failed(reason)["words"]
    assert job.task("worker:0")["attempt"] == 1, "another start would end in the same way"


def test_the_job_takes_too_long(engine: Engine) -> None:
    job = engine.submit(workers("sleep 1000"), timeouts={"job": "500ms"})
    assert "500" in job.failed("job-timeout")["words"]


def test_a_program_that_hangs_is_found(engine: Engine) -> None:
    job = engine.submit(workers("sleep 1000", restart={"scope": "never"}), timeouts={"stall": "2s"})
    assert job.failed("stalled")["words"].startswith("made no progress for ")


def test_a_program_that_reported_and_spins_is_found(engine: Engine) -> None:
    program = python("""
        import sys
        print("reporter progress:0.1", file=sys.stderr)
        while True: pass
    """)
    job = engine.submit(workers(program, restart={"scope": "never"}), timeouts={"stall": "2s"})
    job.failed("stalled")


@pytest.mark.needs("local-master")
def test_a_group_that_hangs_shows_the_stacks_of_all_and_is_formed_anew(engine: Engine) -> None:
    program = """
        import os, time
        from trainmaster import runtime

        def collective(rank):
            is_first = os.environ["TRAINMASTER_ATTEMPT"] == "1"
            if rank == 1 and is_first:
                time.sleep(1000)
            while rank == 0 and is_first:
                pass  # it spins while it waits, as NCCL does

        rank = int(os.environ["RANK"])
        with runtime.phase("staging"):  # no stall, as long as the other one is still to begin
            runtime.barrier("both are there")
        for step in range(3):
            runtime.progress(step=step)
        collective(rank)
        print("done")
    """
    group = workers(python(program), 2, restart={"scope": "group", "limit": 1})
    job = engine.submit(group, framework="pytorch", timeouts={"stall": "3s"})
    status = job.succeeded()
    assert status["restarts"] == 1
    assert "stalled" in {event["reason"] for event in job.told("attempt-ended")}
    (incident,) = job.told("incident")
    assert (incident["cause"]["reason"], incident["costs"]) == ("stalled", True)
    for rank in range(2):
        assert job.lines(f"worker:{rank}", 2) == ["done"]
        printed = "\n".join(job.lines(f"worker:{rank}", 1))
        assert "(most recent call first)" in printed, printed
        assert "in collective" in printed, printed
        assert "waits in" in printed, printed


def test_one_rank_ends_while_the_other_hangs(engine: Engine) -> None:
    program = python("""
        import os
        while os.environ["TRAINMASTER_INDEX"] == "1": pass
    """)
    roles = workers(program, 2, restart={"scope": "group", "limit": 0})
    reason = engine.submit(roles, timeouts={"finish": "2s"}).failed("hung-after-peer-finished")
    assert reason["task"] == "worker:1"
    assert "after a peer had finished" in reason["words"]
