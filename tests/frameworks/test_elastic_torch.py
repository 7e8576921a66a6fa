"""A round that is broken frees who waits in it, in a collective and while its group is made, though no socket closes."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from trainmaster.runtime.elastic import BROKEN, Member, Round, torch_training
from trainmaster.runtime.elastic.rounds import NO_STATE, STATE
from trainmaster.runtime.elastic.torch_groups import Group, Interrupted, Listener
from trainmaster.runtime.elastic.torch_training import Training

MEMBER = """
import json, queue, sys, threading
import torch
from trainmaster.runtime.elastic import BROKEN, Member, Round
from trainmaster.runtime.elastic.torch_groups import Interrupted, Listener

backend, device = sys.argv[1:]
listener, rounds = Listener(backend, torch.device(device)), queue.Queue()
print(listener.port, flush=True)

def listen():
    for line in sys.stdin:
        word = json.loads(line)
        if isinstance(word, int):
            listener.heard(BROKEN, word)
        else:
            rounds.put(word)

threading.Thread(target=listen, daemon=True).start()
while True:
    number, rank, ports, sums = rounds.get()
    members = [Member(f"worker:{index}", 0, "127.0.0.1", f"[{port}, true]", 0, True) for index, port in enumerate(ports)]
    try:
        group = listener.group(Round(number, rank, members))
        for _ in range(sums):
            total = torch.ones(1000, device=device)
            group.sum([total])
            print("sum", *map(int, total.unique().tolist()), flush=True)
    except (Interrupted, KeyboardInterrupt) as error:
        print("interrupted" if isinstance(error, Interrupted) else "stopped", flush=True)
"""
NOBODY = 9  # a port


class Members:
    """Processes that make groups. Those of NCCL share a GPU, which it allows where they seem to be on several machines."""

    def __init__(self, backend: str, count: int = 3) -> None:
        device = "cuda:0" if backend == "nccl" else "cpu"
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", MEMBER, backend, device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env={**os.environ, "NCCL_HOSTID": str(rank), "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
            )
            for rank in range(count)
        ]  # fmt: skip
        self.ports = [int(self.line(rank)) for rank in range(count)]

    def meet(self, number: int, ranks: Sequence[int], sums: Sequence[int], missing: int = 0) -> None:
        """Have members make a group, in which each takes part in so many sums; so many others never come."""
        ports = [self.ports[rank] for rank in ranks] + [NOBODY] * missing
        for index, rank in enumerate(ranks):
            self.say(rank, [number, index, ports, sums[index]])

    def break_round(self, number: int, ranks: Sequence[int]) -> None:
        for rank in ranks:
            self.say(rank, number)

    def say(self, rank: int, word: object) -> None:
        pipe = self.processes[rank].stdin
        assert pipe is not None
        pipe.write(json.dumps(word) + "\n")
        pipe.flush()

    def line(self, rank: int) -> str:
        pipe = self.processes[rank].stdout
        assert pipe is not None
        return pipe.readline().strip()

    def lines(self, *ranks: int) -> list[str]:
        return [self.line(rank) for rank in ranks]

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture(params=["gloo", "nccl"] if torch.cuda.is_available() else ["gloo"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_broken_round_frees_a_collective_and_the_next_one_goes_on(backend: str) -> None:
    with Members(backend) as members:
        members.meet(1, [0, 1, 2], [2, 2, 1])
        assert members.lines(0, 1, 2) == ["sum 3"] * 3
        began = time.monotonic()
        members.break_round(1, [0, 1])
        assert members.lines(0, 1) == ["interrupted"] * 2
        assert time.monotonic() - began < 30, "far below the timeout of any collective"
        members.meet(2, [1, 0], [2, 2])
        assert members.lines(0, 1, 0, 1) == ["sum 2"] * 4


def test_members_outlive_one_that_is_killed_in_the_middle_of_a_collective(backend: str) -> None:
    """Before they have heard that the round is broken, too. No sum without it comes out."""
    with Members(backend) as members:
        members.meet(1, [0, 1, 2], [2, 2, 1])
        assert members.lines(0, 1, 2) == ["sum 3"] * 3
        members.processes[2].kill()
        if backend == "nccl":  # its own watch finds it out meanwhile
            with pytest.raises(subprocess.TimeoutExpired):
                members.processes[0].wait(5)
        members.break_round(1, [0, 1])
        assert members.lines(0, 1) == ["interrupted"] * 2
        members.meet(2, [0, 1], [1, 1])
        assert members.lines(0, 1) == ["sum 2"] * 2


@pytest.mark.full
def test_a_signal_is_served_in_the_middle_of_a_collective(backend: str) -> None:
    with Members(backend) as members:
        members.meet(1, [0, 1, 2], [2, 2, 1])
        assert members.lines(0, 1, 2) == ["sum 3"] * 3
        members.processes[0].send_signal(signal.SIGINT)
        assert members.line(0) == "stopped"


@pytest.mark.full
def test_a_broken_round_frees_who_waits_for_a_member_that_never_came(backend: str) -> None:
    with Members(backend, 2) as members:
        members.meet(1, [0, 1], [1, 1], missing=1)
        began = time.monotonic()
        members.break_round(1, [0, 1])
        assert members.lines(0, 1) == ["interrupted"] * 2
        assert time.monotonic() - began < 30
        members.meet(2, [0, 1], [1, 1])
        assert members.lines(0, 1) == ["sum 2"] * 2
        members.say(0, [3, 1, [NOBODY, members.ports[0]], 1])  # the first rank, at whose store all meet, is dead
        members.break_round(3, [0])
        assert members.line(0) == "interrupted"
        members.meet(4, [1, 0], [1, 1])
        assert members.lines(0, 1) == ["sum 2"] * 2


def test_a_collective_of_gloo_that_nothing_frees_is_left_behind() -> None:
    """Its backend is kept: a destructor would wait for it for ever."""

    class Stuck:
        def allreduce(self, tensors: list[torch.Tensor]) -> Stuck:
            has_begun.set()
            return self

        def is_completed(self) -> bool:
            return False

        def wait(self, limit: timedelta) -> None:
            raise RuntimeError("the moment is over")

    def add_up(group: Group) -> None:
        try:
            group.sum([torch.ones(1)])
        except Interrupted:
            was_freed.set()

    has_begun, was_freed, stuck = threading.Event(), threading.Event(), Stuck()
    group, kept = Group(1, stuck, {}, torch.device("cpu")), weakref.ref(stuck)
    thread = threading.Thread(target=add_up, args=[group], daemon=True)
    thread.start()
    assert has_begun.wait(60)
    group.abort()
    assert was_freed.wait(60)
    thread.join(60)
    group.close()
    del stuck, group
    gc.collect()
    assert kept() is not None


@pytest.mark.parametrize("leaves_in", [0, 1, 2])
def test_a_sum_over_nccl_counts_once_all_members_have_ended_it(leaves_in: int) -> None:
    """A kernel may end with a wrong sum where a peer has left, before this member hears of it. No GPU is needed for this."""

    class Kernels:
        """Of two members that give the same; in the given collective, from 1, and after it the other one gives nothing any more."""

        count = 0

        def allreduce(self, tensors: list[torch.Tensor]) -> Kernels:
            self.count += 1
            tensors[0] *= 1 if leaves_in and self.count >= leaves_in else 2
            return self

        def wait(self) -> None:
            pass

        def size(self) -> int:
            return 2

    class Synchronous(Group):
        def _wait_for_gpu(self) -> None:
            self._check()

    group, total = Synchronous(1, Kernels(), None, torch.device("cpu")), torch.ones(3)
    if leaves_in:
        with pytest.raises(Interrupted):
            group.sum([total])
    else:
        group.sum([total])
        group.sum([total])
        assert total.tolist() == [4.0] * 3


def test_a_group_that_is_made_too_late_leaves_the_next_one_alone() -> None:
    class Slow(Listener):
        def _form(self, meeting: Round) -> Group:
            mine.update({meeting.number: threading.current_thread()})
            group = super()._form(meeting)
            if meeting.number == 1:
                may_end.wait(60)
            return group

    may_end, mine = threading.Event(), dict[int, threading.Thread]()
    listeners = [Slow("gloo", torch.device("cpu")), Listener("gloo", torch.device("cpu"))]
    rows = [Member(f"worker:{rank}", 0, "127.0.0.1", f"[{it.port}]", 0, True) for rank, it in enumerate(listeners)]
    groups: dict[tuple[int, int], Group | None] = {}

    def form(rank: int, number: int) -> None:
        with contextlib.suppress(Interrupted):
            groups[rank, number] = listeners[rank].group(Round(number, rank, rows))

    try:
        for number in (1, 2):
            threads = [threading.Thread(target=form, args=(rank, number)) for rank in range(2)]
            for thread in threads:
                thread.start()
            threads[1].join(60)
            if number == 1:
                listeners[0].heard(BROKEN, 1)
            threads[0].join(60)
        may_end.set()
        mine[1].join(60)
        assert (0, 1) not in groups
        totals = [torch.ones(3), torch.ones(3)]
        sums = [threading.Thread(target=groups[rank, 2].sum, args=([totals[rank]],)) for rank in range(2)]  # type: ignore[union-attr]
        for thread in sums:
            thread.start()
        for thread in sums:
            thread.join(60)
        assert [total.tolist() for total in totals] == [[2.0] * 3] * 2
        listeners[0].heard(BROKEN, 2)
        assert groups[0, 2] is not None
        assert groups[0, 2]._is_broken, "who waits in it is freed"
    finally:
        may_end.set()
        for group in groups.values():
            if group is not None:
                group.close()
        for listener in listeners:
            listener.close()


def test_members_that_were_interrupted_before_they_had_a_state_in_common_take_one() -> None:
    members = [made(seed=seed) for seed in (1, 2)]
    ports = [training._listener.port for training in members]
    rows = [
        Member(f"worker:{index}", 0, "127.0.0.1", f"[{port}, {NO_STATE}]", 0, False) for index, port in enumerate(ports)
    ]

    def take(rank: int) -> None:
        training, here = members[rank], Round(2, rank, rows)
        training._has_state = NO_STATE
        training._group = training._listener.group(here)
        training._take_state(here)

    threads = [threading.Thread(target=take, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    states = [training.model.state_dict().values() for training in members]
    assert all(torch.equal(mine, yours) for mine, yours in zip(*states, strict=True))
    assert all(training._has_state == STATE for training in members)
    for training in members:
        training.leave()


@pytest.mark.full
def test_members_whose_models_differ_say_in_what_and_a_newcomer_alone_ends() -> None:
    """In a process of their own: a collective that is left behind keeps its sockets until that ends."""
    program = "import os, test_elastic_torch; test_elastic_torch.meet_with_models_that_differ(); os._exit(0)"
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, check=True, timeout=300)


def meet_with_models_that_differ() -> None:
    def form(rank: int, rows: list[Member], texts: list[str]) -> None:
        training, here = members[rank], Round(2, rank, rows)
        training._group = training._listener.group(here)
        try:
            training._compare(here)
        except ValueError as error:
            texts[rank] = str(error)
        except Interrupted:
            texts[rank] = "goes on"
        else:
            are_all_in.wait(60)  # the others are still connecting
        for member in members:  # as the master does once one of them has left
            member._listener.heard(BROKEN, 2)
        training.leave()  # at once, where they differ

    def texts_of() -> list[str]:
        rows = [
            Member(f"worker:{rank}", 0, "127.0.0.1", training._payload(training._listener.port), 0, True)
            for rank, training in enumerate(members)
        ]
        texts = ["alike"] * len(members)
        threads = [threading.Thread(target=form, args=(rank, rows, texts), daemon=True) for rank in range(len(members))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return texts

    members, are_all_in = [made(), made(seed=2)], threading.Barrier(2)
    assert texts_of() == ["alike"] * 2
    wide = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    wide[0].half()

    def of_two_kinds() -> list[Training]:
        return [made(), made(), Training(model=wide, optimizer=torch.optim.SGD(wide.parameters()), batches_per_step=2)]

    members = of_two_kinds()
    texts = texts_of()
    assert texts == [texts[0]] * 3
    assert 'parameter 0 "0.weight" is float32 (4, 2) at worker:0 and worker:1, float16 (4, 2) at worker:2; ' in texts[0]
    assert "; and 2 more; all must make the same model" in texts[0]
    members = of_two_kinds()
    members[2]._has_state = NO_STATE
    assert texts_of() == ["goes on", "goes on", texts[2]]


def test_connections_of_the_program_outlive_a_broken_round() -> None:
    """Also those that another of its threads opens just while a group is made."""
    listeners = [Listener("gloo", torch.device("cpu")) for _ in range(2)]
    rows = [Member(f"worker:{index}", 0, "127.0.0.1", f"[{it.port}]", 0, True) for index, it in enumerate(listeners)]
    groups: list[Group] = []
    server, mine, is_over = (
        socket.create_server(("127.0.0.1", 0), backlog=1000),
        list[socket.socket](),
        threading.Event(),
    )

    def connect() -> None:
        while not is_over.is_set() and len(mine) < 100:
            mine.append(socket.create_connection(server.getsockname()))

    def form(rank: int) -> None:
        group = listeners[rank].group(Round(1, rank, rows))
        assert group is not None
        groups.append(group)

    threads = [threading.Thread(target=form, args=(rank,)) for rank in range(2)]
    try:
        connecting = threading.Thread(target=connect)
        for thread in [*threads, connecting]:
            thread.start()
        for thread in threads:
            thread.join(60)
        is_over.set()
        connecting.join(60)
        for listener in listeners:
            listener.heard("broken", 1)
        assert len(groups) == 2
        assert all(group._sockets for group in groups)
        for connection in mine:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
    finally:
        is_over.set()
        for it in [server, *mine, *groups, *listeners]:
            it.close()


# -- alone --


def made(seed: int = 1, **more: Any) -> Training:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    return Training(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **more)


def gradient_of(training: Training, batch: torch.Tensor) -> None:
    training.model(batch).square().mean().backward()


BATCHES = [torch.randn(4, 2, generator=torch.Generator().manual_seed(number)) for number in range(6)]


def test_alone_it_trains_as_a_plain_loop_does() -> None:
    training = made()
    for batch in training.batches(BATCHES):
        with training.step():
            gradient_of(training, batch)
    plain = made()
    for batch in BATCHES:
        gradient_of(plain, batch)
        plain.optimizer.step()
        plain.optimizer.zero_grad()
    assert training.steps == 6
    for ours, theirs in zip(training.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)


def test_several_batches_make_a_step() -> None:
    training = made(batches_per_step=4)
    for batch in training.batches(BATCHES):
        with training.step():
            gradient_of(training, batch)
    assert training.steps == 2, "four batches, and the two that were left"


def test_no_shard_counts_before_the_step_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[int] = []
    training = made(batches_per_step=4)
    monkeypatch.setattr(torch_training.inputs, "report_at_once", lambda *_: reports.append(training.steps))
    complete = training._complete

    def others_went_on(**more: Any) -> None:
        """They have a member more now, and have not used what this one added: its four batches come again, two by two."""
        training._outcome, training._weight, training._per_step, training._complete = "again", 0, 2, complete

    training._complete = others_went_on
    for batch in training.batches(BATCHES[:4]):
        with training.step():
            gradient_of(training, batch)
    assert reports == [2, 2], "not after the first step, when two batches were in none; and at the end"


def test_epochs_and_a_state_that_is_taken_over() -> None:
    first = made(generator=torch.Generator().manual_seed(3))
    for _ in first.epochs(2):
        for batch in first.batches(BATCHES[:2]):
            with first.step():
                gradient_of(first, batch)
    second = made(generator=torch.Generator())
    second._unpack(first._packed())
    assert (second.steps, [*second.epochs(2)]) == (4, [])
    for ours, theirs in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(first._state["generator"].get_state(), second._state["generator"].get_state())


@pytest.mark.parametrize("raised", [RuntimeError("mine"), KeyboardInterrupt(), SystemExit(3), ValueError("mine")])
def test_what_the_program_raises_passes(raised: BaseException) -> None:
    training = made()
    with pytest.raises(type(raised)), training.step():
        raise raised
    with pytest.raises(ValueError, match="loader"):
        next(training.batches(_broken_loader()))


def test_a_batch_without_a_step_is_an_error() -> None:
    training = made()
    with pytest.raises(RuntimeError, match=r"training.step"):
        for _ in training.batches(BATCHES):
            pass


def _broken_loader() -> Iterator[torch.Tensor]:
    raise ValueError("of the loader")
    yield BATCHES[0]


def test_masks_and_complex_buffers_survive_a_step_without_a_batch() -> None:
    model = torch.nn.Linear(2, 1)
    model.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
    model.register_buffer("turns", torch.polar(torch.ones(3), torch.arange(3.0)))
    model.register_buffer("seen", torch.tensor([True, False]))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    training = Training(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for batch in training.batches([torch.ones(1, 2)]):
        with training.step():
            gradient_of(training, batch)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])
        assert training._weighted(buffer).abs().sum() == 0, "what this member adds, which has no batch now"


def test_the_batches_of_a_step_go_around_where_there_are_more_members_than_batches() -> None:
    training = made(batches_per_step=2)
    shares = defaultdict(int)
    for training._sums in range(3):
        total = 0
        for rank in range(3):
            training._round = Round(1, rank, [Member("worker:0", 0, "", "", 0, False)] * 3)
            shares[rank] += training._share()
            total += training._share()
        assert total == 2
    assert shares == {0: 2, 1: 2, 2: 2}


def test_a_newcomer_with_a_higher_step_gives_its_state_to_nobody_who_was_there_before() -> None:
    rows = [("worker:0", 5, False), ("worker:1", 6, False), ("worker:2", 900, True)]
    assert Round(2, 0, [Member(task, 0, "", "", step, new) for task, step, new in rows]).source == 1
    assert Round(1, 0, [Member(task, 0, "", "", step, True) for task, step, _ in rows]).source == 2
    again = Round(3, 0, [Member(task, 0, "", "", step, False) for task, step, _ in rows])
    assert again.furthest([True, True, False]) == 1, "the round before broke before the newcomer had the state"


def test_what_cannot_be_kept_equal_is_refused() -> None:
    model = torch.nn.Embedding(4, 2, sparse=True)
    training = Training(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="sparse"), training.step():
        model(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="not of the model"):
        Training(model=model, optimizer=torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1))
