"""What is asked for and what is ordered say the same, and no more than the engine has."""

from __future__ import annotations

import json

import pytest

from trainmaster.core.fold.changes import fold
from trainmaster.core.frames import Joiner, content_of
from trainmaster.core.input.splits import File, Listing
from trainmaster.core.machine.actions import Order
from trainmaster.core.machine.events import Event
from trainmaster.core.machine.orders import ORDERS, order_faults, order_fields, order_message
from trainmaster.core.machine.state import State, Task, populate
from trainmaster.core.spec.reading import job_from
from trainmaster.master.orders import Orders

MIB = 1 << 20
RESOURCES = {"memory": "400MiB", "overhead": "64MiB"}


@pytest.mark.parametrize(
    ("factor", "largest", "asked"),
    [(1.0, 1024, 464), (2.0, 1024, 864), (100.0, 1024, 1024), (100.0, None, 40064), (2.0, 100, 464)],
)
def test_after_out_of_memory_no_more_is_asked_than_the_engine_has(
    factor: float, largest: int | None, asked: int
) -> None:
    job = job_from({"name": "t", "roles": {"worker": {"command": "true", "resources": RESOURCES, "retry_memory": 2}}})
    state = State(id="t-aaaaaa")
    populate(state, job)
    state.tasks["worker:0"].memory_factor = factor
    orders = Orders(job, {})
    orders.largest = None if largest is None else largest * MIB
    request = orders.request(state, "worker:0", 1)
    assert (request.memory, request.program_memory) == (asked * MIB, (asked - 64) * MIB)


def test_the_peers_of_many_tasks_go_ahead_of_each_start_as_the_same_frames() -> None:
    job = job_from(
        {"name": "t", "roles": {"worker": {"command": "true", "replicas": 2_000, "restart": {"scope": "task"}}}}
    )
    state = State(id="t-aaaaaa")
    populate(state, job)
    for task in state.tasks.values():
        task.address, task.ports = f"10.0.{task.index // 256}.{task.index % 256}", {"main": 23_000 + task.index}
    orders, ahead = Orders(job, {}), []
    for key in ("worker:0", "worker:1"):
        order = orders.payload(state, Order(key, 1, 1, "start", "1"))
        (name,) = order["contents"]
        assert (name, name in order["files"]) == ("peers.json", False)
        ahead.append(orders.ahead(order))
    assert all(first is second for first, second in zip(*ahead, strict=True))
    joiner = Joiner()
    message = next(message for frame in ahead[0] if (message := joiner.add(frame)) is not None)
    assert message["digest"] == order["contents"]["peers.json"]
    peers = json.loads(content_of(message))["worker"]
    assert peers[1_999] == {"address": "10.0.7.207", "ports": {"main": 24_999}}
    assert sum(map(len, ahead[0])) < len(content_of(message)) / 2


def test_each_order_has_the_fields_of_its_verb_and_no_others() -> None:
    data = {
        "name": "t",
        "roles": {"worker": {"command": "true", "workdir": "copy", "prepare": "make", "stop": {"warn": "SIGUSR1"}}},
        "outputs": {"model": {"url": "memory://out"}},
        "inputs": {"train": {"url": "memory://data", "as": "shards"}},
        "checkpoint": {"path": "ckpt", "url": "memory://ckpt"},
    }
    job = job_from(data)
    state = State(id="t-aaaaaa")
    populate(state, job)
    orders = Orders(job, {"cwd": "/", "archive": "a.zip"})
    orders.listings = {"train": Listing("", ())}
    task = state.tasks["worker:0"]
    task.address, task.warned = "10.0.0.1", {"seconds": 30.0, "reason": "preempted", "figures": {"by": "another"}}
    state.groups[0].ranks = {"worker:0": 0}
    for verb in ORDERS:
        order = Order("worker:0", 1, 1, verb, "1")
        message = order_message(1, order.attempt, verb, order.id, **orders.payload(state, order))
        assert order_faults(message) == []
        assert order_fields({**message, "colour": "green"}) == order_fields(json.loads(json.dumps(message)))


def test_files_are_divided_among_the_members_that_are_left_whatever_their_indexes() -> None:
    data = {
        "name": "t", "framework": "pytorch",
        "roles": {"worker": {"command": "true", "replicas": {"min": 2, "max": 3}}},
        "inputs": {"train": {"url": "memory://data", "as": "list", "split": "again"}},
    }  # fmt: skip
    state = State()
    fold(state, [Event(1, 0.0, 1, "submitted", {"id": "t-aaaaaa", "job": data})])
    orders = Orders(state.known_job, {})
    orders.listings = {"train": Listing("", tuple(File(f"f{number}", 1) for number in range(6)))}

    def dealt() -> list[int]:
        parts = [
            orders.payload(state, Order(task.key, 1, 1, "prepare", "1"))["inputs"]["train"]["files"]
            for task in members()
        ]
        assert sorted(path for part in parts for path, *_ in part) == [f"f{number}" for number in range(6)]
        return list(map(len, parts))

    def members() -> list[Task]:
        return list(state.members(state.groups[0]))

    sized = {"group": 0, "sizes": {"worker": 3}, "elastic": ["worker"]}
    fold(state, [Event(2, 0.0, 1, "sized", sized)])
    assert dealt() == [2, 2, 2]
    left = {"group": 0, "sizes": {"worker": 2}, "joined": [], "left": ["worker:1"], "restarts": False}
    fold(state, [Event(3, 0.0, 1, "resized", left)])
    assert [task.key for task in members()] == ["worker:0", "worker:2"]
    assert dealt() == [3, 3]
    request = orders.request(state, "worker:1", 2)
    assert (request.growth, request.minimum, request.gang) == (True, 2, "")
