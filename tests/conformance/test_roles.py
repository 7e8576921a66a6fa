"""Roles together: their order, gangs, sizes, ports and peers, serving roles, copies of a program."""

from __future__ import annotations

import json

import pytest
from conformance.engines import Engine, python, role, workers
from waiting import until

from trainmaster.core.errors import BadInput

SERVER = python("""
    import socket
    from trainmaster import runtime
    mine = runtime.task().peers["ps"][0]["ports"]["serve"]
    listening = socket.create_server(("", mine))
    print("listening", flush=True)
    while True:
        line, _ = listening.accept()
        line.sendall(b"hello")
        line.close()
""")
CLIENT = python("""
    import socket, time
    from trainmaster import runtime
    server = runtime.task().peers["ps"][0]
    while True:
        try:
            with socket.create_connection((server["address"], server["ports"]["serve"])) as line:
                print("the server says", line.recv(5).decode())
                break
        except ConnectionRefusedError:
            time.sleep(0.01)
""")


def started(job, task: str) -> float:
    return next(event["at"] for event in job.told("started") if event["task"] == task)


def test_a_role_waits_until_another_runs_and_what_serves_is_stopped_last(engine: Engine) -> None:
    roles = {"worker": role(CLIENT, 2, after={"ps": "running"}), "ps": role(SERVER, ports=["serve"])}
    job = engine.submit(roles)
    status = job.succeeded()
    assert job.lines("worker:0") == job.lines("worker:1") == ["the server says hello"]
    assert {task["task"]: task["state"] for task in status["tasks"]} == {
        "ps:0": "killed", "worker:0": "succeeded", "worker:1": "succeeded",
    }  # fmt: skip
    assert job.task("ps:0")["words"] == "was stopped, the job being complete"
    assert started(job, "ps:0") <= min(started(job, "worker:0"), started(job, "worker:1"))


def test_a_role_waits_until_another_has_succeeded(engine: Engine) -> None:
    roles = {
        "fetch": role(f"echo fetched > {engine.folder}/fetched; echo done"),
        "worker": role(f"cat {engine.folder}/fetched", after={"fetch": "succeeded"}),
    }
    job = engine.submit(roles)
    job.succeeded()
    assert job.lines("worker:0") == ["fetched"]


def test_a_role_whose_precondition_failed_never_starts(engine: Engine) -> None:
    roles = {
        "fetch": role("exit 9", restart="never", counts=False),
        "worker": role("true", after={"fetch": "succeeded"}),
    }
    job = engine.submit(roles)
    job.failed("dependency-failed")
    assert not [event for event in job.told("started") if event["task"] == "worker:0"]


@pytest.mark.brief
def test_a_gang_starts_together(engine: Engine) -> None:
    """Every member sees every other's address and ports at its start."""
    job = engine.submit(
        workers("cat $TRAINMASTER_PEERS; echo; echo port $TRAINMASTER_PORT_X_Y", 3, ports=["x-y"]), gang=True
    )
    job.succeeded()
    tables = [json.loads(job.lines(f"worker:{index}")[0]) for index in range(3)]
    assert tables[0] == tables[1] == tables[2]
    ports = [peer["ports"]["x-y"] for peer in tables[0]["worker"]]
    assert len({(peer["address"], port) for peer, port in zip(tables[0]["worker"], ports, strict=True)}) == 3
    assert [job.lines(f"worker:{index}")[1] for index in range(3)] == [f"port {port}" for port in ports]
    assert len(job.told("generation-formed")) == 1


@pytest.mark.needs("local-master")
def test_a_gang_larger_than_the_machine_is_refused(engine: Engine) -> None:
    huge = {"worker": {"command": "true", "replicas": 2, "resources": {"cores": 0.1, "memory": "100TiB"}}}
    with pytest.raises(BadInput, match=r"200 TiB|100 TiB") as refused:
        engine.submit(huge, gang=True)
    assert "roles.worker.resources.memory" in str(refused.value)
    assert "this machine has" in str(refused.value)


@pytest.mark.needs("local-master")
def test_more_gpus_than_there_are_is_refused(engine: Engine) -> None:
    with pytest.raises(BadInput, match="4096 GPUs, this machine has") as refused:
        engine.submit({"worker": {"command": "true", "resources": {"cores": 0.1, "gpus": 4096}}})
    assert "roles.worker.resources.gpus" in str(refused.value)


@pytest.mark.needs("local-master")
def test_the_group_is_as_large_as_there_is_room_for(engine: Engine) -> None:
    """Between min and max: with what is granted, without gaps; the rest is left out."""
    from trainmaster.host.machine import cores

    each = cores() / 2.5  # two fit, three do not
    roles = {
        "worker": {
            "command": "echo $TRAINMASTER_INDEX of $WORLD_SIZE", "replicas": {"min": 1, "max": 3},
            "resources": {"cores": each, "memory": "64MiB"},
        }
    }  # fmt: skip
    job = engine.submit(roles, framework="pytorch", gang=True)
    status = job.succeeded()
    assert [task["task"] for task in status["tasks"]] == ["worker:0", "worker:1"]
    assert [job.lines(f"worker:{index}") for index in range(2)] == [["0 of 2"], ["1 of 2"]]


def test_a_command_that_prepares_runs_once_a_container(engine: Engine) -> None:
    roles = workers(
        "wc -l < prepared-$TRAINMASTER_INDEX; exit $(( TRAINMASTER_ATTEMPT == 1 ))", 2,
        prepare="echo prepared >> prepared-$TRAINMASTER_INDEX", restart={"scope": "task", "limit": 2},
    )  # fmt: skip
    job = engine.submit(roles)
    job.succeeded()
    for task in ("worker:0", "worker:1"):
        assert job.lines(task, 2)[-1].strip() == "1"


def test_a_command_that_prepares_may_fail(engine: Engine) -> None:
    job = engine.submit(workers("echo started", prepare="echo no network; exit 5", restart="never"))
    reason = job.failed("prepare-failed")
    assert reason["words"] == "its prepare command exited with status 5"
    assert "no network" in reason["tail"]


def test_copies_of_a_program(engine: Engine) -> None:
    program = "echo $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, node $GROUP_RANK"
    job = engine.submit(workers(program, 2, processes=2), framework="pytorch")
    job.succeeded()
    assert sorted(line for task in ("worker:0", "worker:1") for line in job.lines(task)) == [
        "worker:0.0 0 of 4, local 0 of 2, node 0",
        "worker:0.1 1 of 4, local 1 of 2, node 0",
        "worker:1.0 2 of 4, local 0 of 2, node 1",
        "worker:1.1 3 of 4, local 1 of 2, node 1",
    ]


def test_one_copy_that_fails_fails_the_task(engine: Engine) -> None:
    job = engine.submit(workers("test $TRAINMASTER_COPY = 0 && sleep 1000; exit 6", processes=2, restart="never"))
    assert job.failed("exit")["words"] == "exited with status 6"


def test_a_task_that_does_not_count_is_stopped_when_the_rest_is_done(engine: Engine) -> None:
    roles = {"worker": role("true"), "evaluator": role("echo evaluating; sleep 1000")}
    status = engine.submit(roles).succeeded()
    assert {task["task"]: task["state"] for task in status["tasks"]} == {
        "worker:0": "succeeded",
        "evaluator:0": "killed",
    }


@pytest.mark.brief
@pytest.mark.needs("logs-of-the-stopped")
def test_kill_uses_the_signal_and_grace_of_the_role(engine: Engine) -> None:
    program = python("""
        import signal, sys
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print("asked to stop")))
        print("ready")
        while True: signal.pause()
    """)
    job = engine.submit(workers(program, 2, stop={"signal": "SIGUSR1", "grace": "30s"}))
    job.until_line("ready", "worker:0")
    job.until_line("ready", "worker:1")
    told = engine.tm("kill", job.id)
    assert told.returncode == 0, told.stderr
    status = job.end()
    assert status["state"] == "killed"
    assert status["reason"]["reason"] == "killed-by-user"
    assert "user" in status["reason"]["words"]
    assert [task["state"] for task in status["tasks"]] == ["killed", "killed"]
    assert job.lines("worker:1") == ["ready", "asked to stop"]
    assert engine.tm("wait", job.id).returncode == 1


def test_a_program_that_ignores_its_signal_is_killed_after_its_grace(engine: Engine) -> None:
    program = python("""
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        while True: signal.pause()
    """)
    job = engine.submit(workers(program, stop={"grace": "300ms"}))
    job.until_line("deaf")
    job.run.kill("test")
    status = job.end()
    assert status["state"] == "killed"
    assert job.lines() == ["deaf"]


def test_a_job_that_is_killed_before_it_starts(engine: Engine) -> None:
    job = engine.submit({"worker": role("true"), "later": role("true", after={"worker": "succeeded"})})
    job.run.kill("no more")
    assert job.end()["state"] in ("killed", "succeeded")  # whichever came first, and it ends


def test_killing_it_again_changes_nothing(engine: Engine) -> None:
    job = engine.submit(workers("sleep 1000"))
    until(lambda: job.told("started"), what="its program")
    for _ in range(3):
        job.run.kill()
    assert job.end()["state"] == "killed"
    assert engine.tm("kill", job.id).returncode == 0
    assert len(job.told("ended")) == 1


@pytest.mark.needs("network")
def test_libraries_are_told_the_network_that_the_job_names(engine: Engine) -> None:
    chosen = {"interface": engine.interface, "transport": "tcp"}
    told = 'echo "$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME $NCCL_NET $UCX_NET_DEVICES"'
    job = engine.submit(workers(told, 2, env={"NCCL_NET": "mine"}), network=chosen)
    job.succeeded()
    interface = engine.interface
    for task in ("worker:0", "worker:1"):
        assert job.lines(task) == [f"{interface} ={interface} mine {interface}"]
    assert [event["network"] for event in job.told("ready")] == [chosen] * 2


@pytest.mark.needs("network")
def test_a_host_without_an_rdma_device_says_so(engine: Engine) -> None:
    job = engine.submit(workers("echo started", restart="never"), network={"transport": "rdma"})
    assert "has no RDMA device on " in str(job.failed("staging-failed"))
