"""Which server holds what: the same everywhere and for ever, since a checkpoint relies on it."""

from __future__ import annotations

import numpy

from trainmaster.ps.placement import server_of_parameter, servers_of_rows


def test_the_server_of_a_parameter_never_changes() -> None:
    names = ["dense/kernel", "dense/bias", "", "größe"]
    assert [server_of_parameter(name, 1000) for name in names] == [666, 351, 756, 100]
    assert {server_of_parameter(name, 1) for name in names} == {0}


def test_parameters_are_spread_evenly() -> None:
    counts = numpy.bincount([server_of_parameter(f"layer_{number}/kernel", 7) for number in range(7000)])
    assert len(counts) == 7
    assert counts.min() > 850


def test_rows_go_by_id_modulo_servers_and_no_server_is_negative() -> None:
    ids = numpy.array([0, 1, 2, 3, 4, -1, -3, -4, -(2**63), 2**63 - 1])
    assert servers_of_rows(ids, 3).tolist() == [number % 3 for number in ids.tolist()]
    assert servers_of_rows(ids, 1).tolist() == [0] * len(ids)
