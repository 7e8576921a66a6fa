"""Devices of a host are held by one process each, and are free again once it is dead."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from local_machine import forked

from trainmaster.core.errors import EngineFailed
from trainmaster.host import devices
from trainmaster.host.devices import Devices


def host(n: int, busy: tuple[int, ...] = ()) -> Callable[[], devices.Found]:
    """A host with n devices of this test's own."""
    beginning = uuid.uuid4().hex[:8]
    names = tuple(f"GPU-{beginning}-{number}" for number in range(n))
    return lambda: (names, frozenset(names[number] for number in busy))


def test_two_never_have_the_same_and_what_is_given_back_is_free() -> None:
    there = host(3)
    first, second = Devices(there), Devices(there)
    assert set(first.take(2)) & set(second.take(1)) == set()
    with pytest.raises(EngineFailed, match="1 of 3 devices are needed, and so many are not free: GPU-"):
        Devices(there).take(1, patience=0)
    first.release()
    third = Devices(there)
    assert len(third.take(2)) == 2
    third.release()
    second.release()


def test_one_on_which_something_computes_is_passed_over() -> None:
    there = host(2, busy=(0,))
    held = Devices(there)
    assert held.take(1) == (there()[0][1],)
    held.release()


def test_who_gets_too_few_keeps_none() -> None:
    there = host(2)
    one, two = Devices(there), Devices(there)
    one.take(1)
    with pytest.raises(EngineFailed):
        two.take(2, patience=0)
    assert two.names == ()
    assert len(two.take(1)) == 1
    one.release()
    two.release()


def test_the_death_of_a_holder_frees_its_devices() -> None:
    """As it does in a container that is killed: nobody tidies up."""
    there = host(1)

    children: list[Devices] = []

    def hold() -> None:
        children.append(Devices(there))
        children[0].take(1)

    with forked(hold), pytest.raises(EngineFailed):
        Devices(there).take(1, patience=0)
    mine = Devices(there)
    assert len(mine.take(1)) == 1
    mine.release()


def test_where_there_is_no_driver_the_variable_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "accelerators", lambda: ((), frozenset()))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    assert devices.found() == (("GPU-a", "GPU-b"), frozenset())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert devices.found() == ((), frozenset())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert devices.found() == ((), frozenset())
    assert Devices().take(2) == (), "nothing can be chosen"
