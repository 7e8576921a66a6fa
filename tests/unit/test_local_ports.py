"""Ports are reserved across processes, can be bound, and come back when their holder is gone."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from local_machine import finished, forked
from waiting import until

from trainmaster.core.errors import EngineFailed
from trainmaster.host import ports


def _span() -> tuple[int, int]:
    """Sixteen ports of our own to fight over, different in tests that run side by side."""
    first = 20000 + os.getpid() % 600 * 16
    return first, first + 15


def _reserved(n: int, span: tuple[int, int] = ports.RANGE) -> ports.Ports:
    held = ports.Ports(span)
    held.take(n)
    return held


def test_ports_are_outside_the_ephemeral_range_and_bindable() -> None:
    with _reserved(3) as held:
        first, last = ports.ephemeral()
        assert len(set(held.numbers)) == 3
        for port in held.numbers:
            assert not first <= port <= last
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", port))


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_port_in_use_on_either_family_is_passed_over(family: socket.AddressFamily, address: str) -> None:
    with _reserved(1, _span()) as held:
        port = held.numbers[0]
        held.release()
        with socket.socket(family) as listener:
            listener.bind((address, port))
            listener.listen()
            assert not ports.bindable(port)
            assert ports.is_listening(port)
            assert port not in held.take(2)
        assert not ports.is_listening(port)


def test_too_few_are_refused_with_figures_and_none_is_kept() -> None:
    first, last = _span()
    with ports.Ports((first, last)) as held:
        with pytest.raises(EngineFailed, match="17 free ports are needed"):
            held.take(17)
        assert held.numbers == ()


def test_a_killed_holder_frees_its_ports(tmp_path: Path) -> None:
    span = _span()
    told = tmp_path / "ports"

    def hold() -> None:
        told.write_text(" ".join(map(str, _reserved(12, span).numbers)))

    with forked(hold) as pid, ports.Ports(span) as mine:
        theirs = {int(word) for word in told.read_text().split()}
        assert theirs.isdisjoint(mine.take(2))
        os.kill(pid, signal.SIGKILL)
        until(lambda: _taken(mine, 10))
        assert theirs & set(mine.numbers)
    ports.remove_unheld()


def _taken(held: ports.Ports, n: int) -> bool:
    try:
        return bool(held.take(n))
    except EngineFailed:
        return False


def _rounds(span: tuple[int, int], used: Path, rounds: int) -> Callable[[], None]:
    """Reserve six of the ports so many times; while they are reserved nobody else may have made their files."""

    def run() -> None:
        for _ in range(rounds):
            held = ports.Ports(span)
            until(lambda held=held: _taken(held, 6))
            for port in held.numbers:
                os.close(os.open(used / str(port), os.O_CREAT | os.O_EXCL))
            for port in held.numbers:
                (used / str(port)).unlink()
            held.release()
        os._exit(0)

    return run


def test_two_processes_race_and_never_share_a_port(tmp_path: Path) -> None:
    span = _span()
    with (
        forked(_rounds(span, tmp_path, 50), wait=False) as one,
        forked(_rounds(span, tmp_path, 50), wait=False) as other,
    ):
        assert [finished(one), finished(other)] == [0, 0]
