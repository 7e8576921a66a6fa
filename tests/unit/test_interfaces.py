"""A job that names a network: the host's address there."""

from __future__ import annotations

import contextlib
import socket

import pytest

from trainmaster.core.errors import BadInput
from trainmaster.host.network.interfaces import address_on, check


def test_an_interface_or_a_range_gives_an_address_of_this_host() -> None:
    assert address_on("lo") == "127.0.0.1"
    assert address_on("127.0.0.0/8") == "127.0.0.1"
    for name in (name for _, name in socket.if_nameindex()):
        with contextlib.suppress(BadInput):  # an interface without an address
            assert address_on(f"{address_on(name)}/32") == address_on(name)


def test_a_network_that_is_not_here_is_reported_with_those_that_are() -> None:
    for network in ("ib7", "203.0.113.0/24"):
        with pytest.raises(BadInput, match=rf"has no address on {network}; it has .*127.0.0.1 on lo"):
            address_on(network)


def test_a_range_that_is_none_is_refused() -> None:
    check("eth0")
    check("10.1.2.3/16")
    check("fd00::/8")
    with pytest.raises(BadInput, match=r"network: 10\.1\.0\.0/99"):
        check("10.1.0.0/99")
