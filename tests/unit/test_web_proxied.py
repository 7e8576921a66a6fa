"""The page behind a cluster's link: for the cluster's proxy alone, under its own name, and for readers whom the cluster lets see it."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest

from trainmaster.hadoop.conf import Configuration
from trainmaster.hadoop.security.acls import AccessList, may_view
from trainmaster.hadoop.sitefile import Property
from trainmaster.master.connections.serve import Listener
from trainmaster.web.proxied import proxied


class Facts:
    """The pages are asked for nothing about a job."""


@attrs.frozen
class Gate:
    proxies: tuple[str, ...] = ("127.0.0.1",)
    viewers: tuple[str, ...] = ("", "ann", "dörte b")

    def may_view(self, user: str) -> bool:
        return user in self.viewers


def ask(gate: Gate, headers: Mapping[str, str], host: Callable[[int], str] = "127.0.0.1:{}".format) -> int:
    """The status that a listener of ours answers a GET from 127.0.0.1 with."""

    def get(port: int) -> int:
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            line.request("GET", "/static/style.css", headers={"Host": host(port), **headers})
            return line.getresponse().status
        finally:
            line.close()

    async def scene() -> int:
        bound = socket.create_server(
            ("127.0.0.1", 0)
        )  # as where there is no IPv6: the address that uvicorn trusts by default
        port = bound.getsockname()[1]
        listener = Listener(proxied(Facts(), gate, f"127.0.0.1:{port}"))  # type: ignore[arg-type]
        await listener.on_tcp(bound)
        try:
            return await asyncio.to_thread(get, port)
        finally:
            await listener.close()

    return asyncio.run(scene())


def test_the_proxy_sees_the_page() -> None:
    assert ask(Gate(), {}) == 200


def test_a_header_does_not_make_a_local_user_the_proxy() -> None:
    assert ask(Gate(proxies=("10.1.2.3",)), {"X-Forwarded-For": "10.1.2.3"}) == 403


def test_another_name_that_leads_to_the_page_is_refused() -> None:
    assert ask(Gate(), {}, host="evil.example:{}".format) == 421
    assert ask(Gate(), {}, host=lambda port: "127.0.0.1") == 421


@pytest.mark.parametrize(("user", "status"), [("ann", 200), ("d%C3%B6rte+b", 200), ("eve", 403)])
def test_a_reader_whom_the_cluster_does_not_let_see_the_job_is_refused(user: str, status: int) -> None:
    assert ask(Gate(), {"Cookie": f"proxy-user={user}"}) == status


def configured(tmp_path: Any, **properties: str) -> Configuration:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    return Configuration(tmp_path, {name: Property(name, value, False, "x.xml:1") for name, value in named.items()})


def test_the_view_list_is_that_of_hadoop(tmp_path: Any) -> None:
    closed = configured(tmp_path, yarn_acl_enable="true", yarn_admin_acl="yarn admins")
    assert may_view(configured(tmp_path), "ann", "", "eve")  # no lists in force
    assert may_view(
        configured(tmp_path, yarn_acl_enable="true"), "ann", "", "eve"
    )  # everybody is an administrator by default
    assert may_view(closed, "ann", "", "ann")
    assert may_view(closed, "ann", "", "yarn")
    assert may_view(closed, "ann", "bob,eve", "eve")
    assert may_view(closed, "ann", "*", "eve")
    assert may_view(closed, "ann", " root", "root")  # of the group root
    assert not may_view(closed, "ann", "bob", "eve")
    assert not may_view(closed, "ann", "bob", "")
    assert AccessList.parse("a,b g").allows("x", lambda user: ["g"])
    assert not AccessList.parse(" ").allows("x", lambda user: ["g"])
