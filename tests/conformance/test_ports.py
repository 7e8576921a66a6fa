"""Jobs that start at the same instant never share a port."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from conformance.engines import Engine, Submitted, python, workers

from trainmaster.host.ports import Ports

LISTEN = python("""
    import json, os, socket, time
    port = int(os.environ["TRAINMASTER_PORT_MEET"])
    with socket.create_server(("127.0.0.1", port)):
        print(json.dumps([port, os.environ["MASTER_PORT"]]), flush=True)
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            time.sleep(0.01)
""")


def start_together(engine: Engine, times: int) -> None:
    def submit(_: int) -> Submitted:
        return engine.submit(workers(LISTEN, 2, ports=["meet"], restart="never"), framework="pytorch")

    with ThreadPoolExecutor(2) as pool:
        for _ in range(times):
            jobs = list(pool.map(submit, range(2)))
            for job in jobs:
                job.succeeded()
            told = [json.loads(job.lines(task)[0]) for job in jobs for task in ("worker:0", "worker:1")]
            taken = [port for port, _ in told] + [int(told[0][1]), int(told[2][1])]
            assert len(set(taken)) == 6, taken
            assert told[0][1] == told[1][1]
            assert told[2][1] == told[3][1]


@pytest.mark.needs("one-host")
def test_at_once(engine: Engine) -> None:
    start_together(engine, 1)


@pytest.mark.full
@pytest.mark.needs("local-master")
def test_10_times(engine: Engine) -> None:
    start_together(engine, 10)


@pytest.mark.needs("local-master")
@pytest.mark.full
@pytest.mark.soak
def test_50_times(engine: Engine) -> None:
    start_together(engine, 50)


def test_a_port_in_use_is_changed_once(engine: Engine) -> None:
    """A program that ends early with `address already in use` gets another port, free of charge."""
    program = python("""
        import os, sys
        print("port", os.environ["TRAINMASTER_PORT_X"], flush=True)
        if os.environ["TRAINMASTER_ATTEMPT"] == "1":
            sys.exit("OSError: [Errno 98] Address already in use")
    """)
    job = engine.submit(workers(program, ports=["x"], restart={"scope": "task", "limit": 0}))
    job.succeeded()
    assert job.lines("worker:0", 1)[0] != job.lines("worker:0", 2)[0]
    assert job.task("worker:0")["past"][0]["reason"] == "address-in-use"


def test_a_port_may_be_given(engine: Engine) -> None:
    with Ports() as ports:
        (number,) = ports.take()
    job = engine.submit(workers("echo $TRAINMASTER_PORT_UI", ports={"ui": number}))
    job.succeeded()
    assert job.lines() == [str(number)]
