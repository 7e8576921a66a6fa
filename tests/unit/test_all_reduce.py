"""Sums over the members of a round, on real sockets: exact, equal everywhere, and freed at once whatever happens to a member."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from waiting import LIMIT, until

from trainmaster.runtime.elastic import Member
from trainmaster.runtime.elastic.alike import Form
from trainmaster.runtime.elastic.all_reduce import Aborted, Listener, Ring

KEY = "the key of the job"
AT_ONCE = 0.1  # s until an aborted call is over
MUCH = 4_000_000  # numbers: more than two sockets hold


class Members:
    """Members of a round, each in a thread; those of `absent` never come."""

    def __init__(self, size: int, addresses: tuple[str, ...] = ("127.0.0.1",), absent: tuple[int, ...] = ()) -> None:
        self.listeners = [Listener(addresses[rank % len(addresses)]) for rank in range(size)]
        self.places = [
            (addresses[rank % len(addresses)], listener.port) for rank, listener in enumerate(self.listeners)
        ]
        self.rings = {rank: self.ring(rank) for rank in range(size) if rank not in absent}
        self.results: dict[int, Any] = {}
        self.ended: dict[int, float] = {}
        self._threads: list[threading.Thread] = []

    def ring(self, rank: int, number: int = 1) -> Ring:
        return Ring(self.listeners[rank], KEY, "job", number, rank, self.places)

    def begin(self, call: Callable[[Ring], Any]) -> None:
        def run(rank: int, ring: Ring) -> None:
            try:
                self.results[rank] = call(ring)
            except (Aborted, RuntimeError) as error:
                self.results[rank] = error
            self.ended[rank] = time.monotonic()

        self._threads = [threading.Thread(target=run, args=member) for member in self.rings.items()]
        for thread in self._threads:
            thread.start()

    def wait(self) -> dict[int, Any]:
        until(lambda: len(self.results) == len(self.rings), what=lambda: f"all of {self.results}")
        return self.results

    def close(self) -> None:
        for ring in self.rings.values():
            ring.abort()
        for thread in self._threads:
            thread.join(LIMIT)
        for closed in (*self.rings.values(), *self.listeners):
            closed.close()


@contextlib.contextmanager
def members(*arguments: Any, **options: Any) -> Iterator[Members]:
    found = Members(*arguments, **options)
    try:
        yield found
    finally:
        found.close()


def connected(call: Callable[[Ring], Any]) -> Callable[[Ring], Any]:
    def run(ring: Ring) -> Any:
        ring.connect()
        return call(ring)

    return run


def numbers(rank: int, size: int, kind: str) -> np.ndarray[Any, Any]:
    return np.random.default_rng(rank).normal(size=size).astype(kind)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_all_members_hold_the_same_sum(size: int) -> None:
    def call(ring: Ring) -> list[np.ndarray[Any, Any]]:
        arrays = []
        for length in (0, 1, size - 1, 7, 65_537, 300_001):
            for kind in ("f4", "f8"):
                arrays.append(numbers(ring.rank, length, kind))
                ring.all_reduce(arrays[-1])
        return arrays

    with members(size, ("127.0.0.1", "::1")) as group:
        group.begin(connected(call))
        results = group.wait()
    for position, first in enumerate(results[0]):
        assert {results[rank][position].tobytes() for rank in range(size)} == {first.tobytes()}
        wanted = sum(numbers(rank, len(first), first.dtype.str) for rank in range(size))
        assert np.allclose(first, wanted, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_member_gives_its_array_to_all(size: int) -> None:
    def call(ring: Ring) -> list[bytes]:
        copies = []
        for root in range(size):
            for length in (0, 3, 1_000_003):
                array = numbers(ring.rank, length, "f4")
                ring.broadcast(array, root)
                copies.append(array.tobytes())
        return copies

    with members(size) as group:
        group.begin(connected(call))
        results = group.wait()
    wanted = [numbers(root, length, "f4").tobytes() for root in range(size) for length in (0, 3, 1_000_003)]
    assert all(copies == wanted for copies in results.values())


def test_arrays_have_rows_and_columns_and_a_strided_one_is_refused() -> None:
    def call(ring: Ring) -> Any:
        table = np.full((3, 5), ring.rank + 1, "f4")
        ring.all_reduce(table)
        with pytest.raises(ValueError, match="contiguous"):
            ring.all_reduce(table[:, 1])
        return table.tolist()

    with members(2) as group:
        group.begin(connected(call))
        assert list(group.wait().values()) == [[[3.0] * 5] * 3] * 2


def forever(ring: Ring) -> None:
    array = np.ones(MUCH, "f4")
    while True:
        ring.all_reduce(array)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_an_abort_in_one_member_frees_all_at_once(size: int) -> None:
    with members(size) as group:
        group.begin(connected(forever))
        until(lambda: all(ring._scratch is not None for ring in group.rings.values()), what="the first sum")
        aborted = time.monotonic()
        group.rings[1].abort()
        results = group.wait()
    assert {type(error) for error in results.values()} == {Aborted}
    assert group.ended[1] - aborted < AT_ONCE * 10, "generous: this machine has other work"
    group.rings[0].abort()  # nothing is left to free


def test_an_abort_frees_a_member_that_waits_for_one_that_never_comes() -> None:
    with members(3, absent=(2,)) as group:
        group.begin(connected(forever))
        until(lambda: group.rings[1]._left is not None, what="the connection of the two that are there")
        for ring in group.rings.values():
            ring.abort()
        assert {type(error) for error in group.wait().values()} == {Aborted}


MEMBER = """
import sys, numpy as np
from trainmaster.runtime.elastic import Member
from trainmaster.runtime.elastic.alike import Form
from trainmaster.runtime.elastic.all_reduce import Listener, Ring
listener = Listener()
print(listener.port, flush=True)
key = "the key of the job"
ports = [int(port) for port in sys.stdin.readline().split()] + [listener.port]
ring = Ring(listener, key, "job", 1, 2, [("127.0.0.1", port) for port in ports])
ring.connect()
array = np.ones(4_000_000, "f4")
for call in range(10**9):
    ring.all_reduce(array)
    print(call, flush=True)
"""


@contextlib.contextmanager
def with_a_process(group: Members) -> Iterator[subprocess.Popen[str]]:
    """A process that is rank 2 beside two threads here; all add up without end."""
    process = subprocess.Popen([sys.executable, "-c", MEMBER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            port = int(process.stdout.readline())
            process.stdin.write(" ".join(str(port) for _, port in group.places) + "\n")
            process.stdin.flush()
            group.places.append(("127.0.0.1", port))
            group.rings.update({rank: group.ring(rank) for rank in (0, 1)})
            group.begin(connected(forever))
            process.stdout.readline()  # the first sum
            yield process
        finally:
            process.kill()


def test_the_death_of_a_member_frees_the_others() -> None:
    with members(2, absent=(0, 1)) as group, with_a_process(group) as process:
        process.kill()
        assert {type(error) for error in group.wait().values()} == {Aborted}


def test_an_abort_frees_the_others_of_a_member_that_hangs_with_its_sockets_open() -> None:
    with members(2, absent=(0, 1)) as group, with_a_process(group) as process:
        os.kill(process.pid, signal.SIGSTOP)
        aborted = time.monotonic()
        for ring in group.rings.values():
            ring.abort()
        results = group.wait()
    assert {type(error) for error in results.values()} == {Aborted}
    assert max(group.ended.values()) - aborted < AT_ONCE * 10


def test_strangers_and_members_of_an_old_round_are_refused() -> None:
    with members(2, absent=(0,)) as group:
        silent = socket.create_connection(group.places[1])
        talks = socket.create_connection(group.places[1])
        talks.send(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        goes = socket.create_connection(group.places[1])
        goes.close()
        old = group.ring(0, number=0)
        group.rings[0] = group.ring(0)

        def connect_in_vain() -> None:
            with pytest.raises(Aborted):
                old.connect()

        stray = threading.Thread(target=connect_in_vain)
        with contextlib.closing(old), silent, talks:
            stray.start()
            group.begin(connected(lambda ring: ring.all_reduce(np.ones(1, "f4"))))
            assert group.wait() == {0: None, 1: None}
            assert (old._left, old._right) == (None, None)
            old.abort()
            stray.join(LIMIT)


def until_aborted(ring: Ring) -> threading.Thread:
    def connect() -> None:
        with pytest.raises(Aborted):
            ring.connect()

    thread = threading.Thread(target=connect)
    thread.start()
    return thread


def test_a_stranger_takes_no_part_by_what_it_knows_or_has_heard() -> None:
    """Anybody who knew job, round and members took part, with sums of their own."""
    with (
        members(2, absent=(0, 1)) as group, socket.create_server(("127.0.0.1", 0)) as impostor,
        contextlib.closing(Listener()) as listener, contextlib.closing(group.ring(1)) as true,
        contextlib.closing(Ring(listener, KEY, "job", 1, 0, [group.places[0], impostor.getsockname()])) as heard,
    ):  # fmt: skip
        connecting = [until_aborted(ring) for ring in (true, heard)]
        met, _ = impostor.accept()
        with met:  # in the place of the member to the right it hears a proof
            met.sendall(bytes(16))
            hello = met.recv(52, socket.MSG_WAITALL)
            met.sendall(hello[-32:])
            assert met.recv(1) == b"", "what a member has said itself proves nothing to it"
        without_key = Ring(listener, "another key", "job", 1, 0, group.places)
        for words in ("replayed", "another key"):
            with socket.create_connection(group.places[1]) as stranger:
                drawn = stranger.recv(16, socket.MSG_WAITALL)
                proof = without_key._proof("connects", 0, drawn, bytes(16))
                stranger.sendall(hello if words == "replayed" else bytes(20) + proof)
                assert stranger.recv(1) == b"", words
        assert (heard._right, true._left) == (None, None)
        for ring in (true, heard):
            ring.abort()
        for thread in connecting:
            thread.join(LIMIT)
        without_key.close()


def test_members_that_make_different_calls_are_told_so() -> None:
    with members(2) as group:
        group.begin(connected(lambda ring: ring.all_reduce(np.ones(5 + ring.rank, "f4"))))
        errors = group.wait()
    assert any("another call" in str(error) for error in errors.values()), errors


def test_a_listener_has_the_address_that_it_is_given() -> None:
    for address in ("127.0.0.1", "::1"):
        with contextlib.closing(Listener(address)) as listener:
            assert listener.socket.getsockname()[:2] == (address, listener.port)


# -- members that differ --


def compared(*forms: Form, copies: int = 1, newcomers: int = 0) -> list[Any]:
    """Return what each member raises, or whether all are alike. `newcomers`: the last so many have no state yet."""
    rows = [Member(f"worker:{rank // copies}", rank % copies, "", "", 0, True) for rank in range(len(forms))]

    def check(ring: Ring) -> str | bool:
        try:
            return forms[ring.rank].is_alike(
                rows, ring.rank, [form.brief for form in forms], [rank < len(forms) - newcomers for rank in range(len(forms))],
                lambda content: ring.all_reduce(np.frombuffer(content, "u1")),
            )  # fmt: skip
        except ValueError as error:
            return str(error)
        finally:
            ring.close()  # as who leaves at once

    members = Members(len(forms))
    try:
        members.begin(lambda ring: (ring.connect(), check(ring))[1])
        return [members.wait()[rank] for rank in range(len(forms))]
    finally:
        members.close()


def test_members_that_differ_all_raise_the_same_error() -> None:
    def form(kind: str, name: str = "fc") -> Form:
        return Form([("the number", "2", ""), ("variable 0", kind, name), ("variable 1", "float32 (1,)", "bias")])

    alike = form("float32 (10, 64)")
    assert compared(alike, form("float32 (10, 64)", "fc_1"), alike) == [True] * 3, "names may differ"
    text = (
        'members differ in what they train: variable 0 "fc" is float32 (10, 64) at worker:0 and worker:2,'
        " float16 (10, 64) at worker:1; all must make the same model and optimizer, and give Training the same"
    )
    assert compared(alike, form("float16 (10, 64)"), alike) == [text] * 3
    assert compared(alike, form("float16 (10, 64)"), alike, newcomers=2) == [False, text, False], "it ends alone"
    assert compared(alike, form("float16 (10, 64)"), alike, newcomers=3) == [text] * 3, "nobody has trained yet"
    (text, *others) = compared(alike, Form([("the number", "1", ""), ("variable 0", "float32 (10, 64)", "")]), copies=2)
    assert others == [text]
    assert "the number is 2 at worker:0 (process 0), 1 at worker:0 (process 1); " in text
    assert 'variable 1 "bias" is float32 (1,) at worker:0 (process 0), missing at worker:0 (process 1); all' in text
