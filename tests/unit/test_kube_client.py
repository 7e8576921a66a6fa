"""The client of Kubernetes' API against a server that misbehaves: throttles, breaks off, is silent, forgets; and through proxies.

What a real API server does is in tests/conformance/test_kube_client.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from trainmaster.kube import watching
from trainmaster.kube.client import Client
from trainmaster.kube.config import Config
from trainmaster.kube.credentials import Credentials
from trainmaster.kube.errors import ApiError, Conflict, Forbidden, Gone, KubeError, TooMany, Unauthorized, Unreachable
from trainmaster.kube.kinds import CONFIGMAPS, NODES, PODS
from trainmaster.kube.watching import Seen, follow

Answer = Callable[["Exchange"], Awaitable[None]]


@attrs.define
class Exchange:
    """One request as it came, and where its answer goes."""

    line: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


def answer(status: int, content: Any, headers: str = "") -> Answer:
    async def act(exchange: Exchange) -> None:
        data = json.dumps(content).encode()
        exchange.writer.write(f"HTTP/1.1 {status} X\r\n{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    return act


def failure(code: int, reason: str, message: str = "no", headers: str = "", **details: Any) -> Answer:
    return answer(
        code, {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}, headers
    )


def events(*rows: tuple[str, dict[str, Any]], cut: bytes = b"") -> Answer:
    """A watch that tells these, and then ends; with `cut` in the middle of a line, and of the connection."""

    async def act(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for kind, obj in rows:
            line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
            for piece in (line[:7], line[7:]):
                exchange.writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if cut:
            exchange.writer.write(b"%x\r\n%s\r\n" % (len(cut), cut))
            exchange.writer.close()
        else:
            exchange.writer.write(b"0\r\n\r\n")

    return act


async def hang_up(exchange: Exchange) -> None:
    exchange.writer.close()


async def say_nothing(exchange: Exchange) -> None:
    await exchange.reader.read()


@attrs.define
class Server:
    """Answers requests by a script; the last answer stays. `asked` are the requests' first lines."""

    script: list[Answer]
    asked: list[Exchange] = attrs.field(factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := (await reader.readline()).decode().strip():
                headers = {}
                while row := (await reader.readline()).decode().strip():
                    name, _, value = row.partition(": ")
                    headers[name.lower()] = value
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                exchange = Exchange(line, headers, body, reader, writer)
                self.asked.append(exchange)
                act = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                await act(exchange)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    @property
    def lines(self) -> list[str]:
        return [exchange.line.removesuffix(" HTTP/1.1") for exchange in self.asked]


@asynccontextmanager
async def served(*script: Answer, **options: Any) -> AsyncIterator[tuple[Server, Client]]:
    server = Server(list(script))
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    config = options.pop("config", Config("", "ns"))
    config = attrs.evolve(config, server=config.server or f"http://127.0.0.1:{server.port}")
    client = Client(config, **{"patience": 5.0, **options})
    try:
        async with asyncio.timeout(60):
            yield server, client
    finally:
        await client.close()
        listener.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


POD = {"metadata": {"name": "p", "uid": "u", "resourceVersion": "5"}}


def test_connections_are_used_again() -> None:
    async def test() -> None:
        async with served(answer(200, POD)) as (server, client):
            for _ in range(3):
                assert await client.get(PODS, "p") == POD
            assert len({exchange.writer for exchange in server.asked}) == 1
            assert server.lines == ["GET /api/v1/namespaces/ns/pods/p"] * 3

    run(test)


def test_a_kept_connection_that_the_server_has_closed_is_no_failure() -> None:
    async def test() -> None:
        async def last(exchange: Exchange) -> None:
            await answer(200, POD)(exchange)
            exchange.writer.close()

        async with served(last) as (server, client):
            for _ in range(5):
                await client.create(PODS, {"metadata": {"name": "p"}})
            assert len(server.asked) == 5

    run(test)


@pytest.mark.parametrize(
    "broken", [hang_up, failure(503, "ServiceUnavailable"), failure(500, "", "etcdserver: leader changed")]
)
def test_what_may_be_repeated_is(broken: Answer) -> None:
    async def test() -> None:
        async with served(broken, broken, answer(200, POD)) as (server, client):
            assert await client.get(PODS, "p") == POD
            assert len(server.asked) == 3

    run(test)


def test_who_meets_his_own_earlier_try_can_tell() -> None:
    async def test() -> None:
        async with served(hang_up, failure(409, "AlreadyExists")) as (_, client):
            with pytest.raises(Conflict) as told:
                await client.create(PODS, {"metadata": {"name": "p"}})
            assert told.value.exists
            assert told.value.doubtful
            with pytest.raises(Conflict) as told:
                await client.create(PODS, {"metadata": {"name": "p"}})
            assert not told.value.doubtful

    run(test)


def test_an_object_that_an_earlier_try_has_made_is_returned() -> None:
    made: dict[str, Any] = {}

    async def obey(exchange: Exchange) -> None:
        made.update(json.loads(exchange.body))
        await hang_up(exchange)

    async def show(exchange: Exchange) -> None:
        await answer(200, {**made, "metadata": {**made["metadata"], "uid": "1"}})(exchange)

    async def test() -> None:
        async with served(obey, failure(409, "AlreadyExists"), show) as (server, client):
            created = await client.create(PODS, {"metadata": {"name": "p"}})
            assert created["metadata"]["uid"] == "1"
            assert [line.split()[0] for line in server.lines] == ["POST", "POST", "GET"]

    run(test)


def test_what_may_not_be_repeated_is_not() -> None:
    async def test() -> None:
        async with served(hang_up) as (server, client):
            with pytest.raises(Unreachable) as told:
                await client.create(PODS, {"metadata": {"generateName": "p-"}})
            assert told.value.sent
            with pytest.raises(Unreachable):
                await client.patch(PODS, "p", [{"op": "remove", "path": "/x"}], "json")
            with pytest.raises(Unreachable):
                await client.evict("p")
            assert len(server.asked) == 3

    run(test)


def test_a_server_that_throttles_is_waited_for_as_it_says() -> None:
    async def test() -> None:
        throttle = failure(429, "TooManyRequests", headers="Retry-After: 1\r\n")
        async with served(throttle, answer(200, POD), patience=0.1) as (server, client):
            begun = asyncio.get_running_loop().time()
            await client.create(PODS, {"metadata": {"generateName": "p-"}})
            assert asyncio.get_running_loop().time() - begun >= 1.0
            assert len(server.asked) == 2

    run(test)


def test_an_eviction_that_a_budget_forbids_is_reported_at_once() -> None:
    async def test() -> None:
        async with served(failure(429, "TooManyRequests", "the budget needs 2")) as (server, client):
            with pytest.raises(TooMany, match="budget"):
                await client.evict("p")
            assert len(server.asked) == 1

    run(test)


def test_a_try_that_took_longer_than_the_patience_is_followed_by_another() -> None:
    async def test() -> None:
        async with served(say_nothing, answer(201, POD), timeout=0.5, patience=0.4) as (server, client):
            await client.create(PODS, POD)
            assert len(server.asked) == 2

    run(test)


def test_a_server_that_is_silent_or_gone_is_given_up() -> None:
    async def test() -> None:
        async with served(say_nothing, timeout=0.3, patience=0.1) as (_, client):
            with pytest.raises(Unreachable, match="does not answer within"):
                await client.get(PODS, "p")
        async with served(say_nothing, config=Config("http://127.0.0.1:1", "ns"), patience=0.1) as (_, client):
            with pytest.raises(Unreachable, match="connection refused"):
                await client.get(PODS, "p")

    run(test)


def test_after_a_401_credentials_are_fetched_anew_once(tmp_path: Any) -> None:
    async def test() -> None:
        token = tmp_path / "token"
        token.write_text("old")
        config = Config("", "ns", credentials=Credentials(token_file=str(token)))

        async def check(exchange: Exchange) -> None:
            if exchange.headers["authorization"] == "Bearer new":
                await answer(200, POD)(exchange)
            else:
                token.write_text("new")
                await failure(401, "Unauthorized")(exchange)

        async with served(check, config=config) as (server, client):
            await client.get(PODS, "p")
            assert len(server.asked) == 2
        async with served(failure(401, "Unauthorized"), config=config) as (server, client):
            with pytest.raises(Unauthorized):
                await client.get(PODS, "p")
            assert len(server.asked) == 2

    run(test)


def test_a_server_that_has_just_started_and_knows_no_rights_yet_is_waited_for() -> None:
    async def test() -> None:
        forbidden = failure(403, "Forbidden", "cannot create")
        async with served(hang_up, forbidden, forbidden, answer(200, POD), forbidden) as (server, client):
            await client.create(PODS, {"metadata": {"name": "p"}})
            assert len(server.asked) == 4
        async with served(forbidden) as (server, client):
            with pytest.raises(Forbidden):
                await client.create(PODS, {"metadata": {"name": "p"}})
            assert len(server.asked) == 1

    run(test)


def test_a_list_is_read_in_pages_and_anew_where_its_pages_are_gone() -> None:
    async def test() -> None:
        def page(names: list[str], more: str = "") -> Answer:
            items = [{"metadata": {"name": name, "managedFields": [1]}} for name in names]
            return answer(200, {"metadata": {"resourceVersion": "7", "continue": more}, "items": items})

        async with served(page(["a"], "x"), page(["b"])) as (server, client):
            found, version = await client.list(PODS, namespace="*", labels="a=b", limit=1)
            assert [row["metadata"] for row in found] == [{"name": "a"}, {"name": "b"}]
            assert (version, found[0]["kind"]) == ("7", "Pod")
            assert server.lines[1] == "GET /api/v1/pods?labelSelector=a%3Db&limit=1&continue=x"
        async with served(page(["a"], "x"), failure(410, "Expired"), page(["a", "b", "c"])) as (server, client):
            assert len((await client.list(NODES))[0]) == 3
            assert server.lines[2] == "GET /api/v1/nodes"

    run(test)


def test_of_a_proxy_the_tunnel_is_used() -> None:
    async def test() -> None:
        async def tunnel(exchange: Exchange) -> None:
            exchange.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async with served(answer(200, POD)) as (proxy, _):
            proxy.script.insert(0, tunnel)
            config = Config("http://k8s.example:6443", "ns", proxy=f"http://me:s%40cret@127.0.0.1:{proxy.port}")
            async with Client(config) as through:
                assert await through.get(PODS, "p") == POD
            assert proxy.lines[0] == "CONNECT k8s.example:6443"
            assert proxy.asked[0].headers["proxy-authorization"] == "Basic bWU6c0BjcmV0"
            assert proxy.asked[1].headers["host"] == "k8s.example:6443"
        async with served(failure(407, "")) as (proxy, _):
            config = Config("http://k8s.example:6443", "ns", proxy=f"http://127.0.0.1:{proxy.port}")
            async with Client(config, patience=0.1) as through:
                with pytest.raises(Unreachable, match=r"does not let us through to k8s\.example:6443: 407"):
                    await through.get(PODS, "p")
        async with Client(Config("http://k8s.example", proxy="socks5://x")) as through:
            with pytest.raises(KubeError, match="socks5"):
                await through.get(PODS, "p")

    run(test)


# -- watches --


def pod(name: str, version: int) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), "labels": {"n": name}},
    }


def listed(version: int, *pods: dict[str, Any]) -> Answer:
    return answer(200, {"metadata": {"resourceVersion": str(version)}, "items": list(pods)})


async def first(client: Client, count: int) -> list[Seen]:
    found: list[Seen] = []
    async with aclosing(follow(client, PODS, labels="l=m")) as seen:
        async for one in seen:
            found.append(one)
            if len(found) == count:
                break
    return found


def told(seen: list[Seen]) -> list[str]:
    return [f"{one.kind} {one.object['metadata']['name']}" if one.object else one.kind for one in seen]


def test_objects_are_listed_then_watched() -> None:
    async def test() -> None:
        script = (
            listed(10, pod("a", 3), pod("b", 4)),
            events(("MODIFIED", pod("a", 11)), ("BOOKMARK", {"metadata": {"resourceVersion": "20"}})),
            events(("DELETED", pod("b", 21)), ("ADDED", pod("c", 22))),
            say_nothing,
        )
        async with served(*script) as (server, client):
            seen = await first(client, 6)
            assert told(seen) == ["added a", "added b", "synced", "modified a", "deleted b", "added c"]
            since = [line.partition("resourceVersion=")[2].partition("&")[0] for line in server.lines[1:3]]
            assert since == ["10", "20"]

    run(test)


@pytest.mark.parametrize(
    "forgotten", [failure(410, "Expired"), events(("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"}))]
)
def test_what_was_missed_is_reported_after_listing_anew(forgotten: Answer) -> None:
    async def test() -> None:
        script = (
            listed(10, pod("a", 3), pod("b", 4), pod("c", 5)),
            forgotten,
            listed(30, pod("b", 4), pod("c", 28), pod("d", 29)),
        )
        async with served(*script, say_nothing) as (_, client):
            seen = await first(client, 8)
            assert told(seen) == [
                "added a",
                "added b",
                "added c",
                "synced",
                "deleted a",
                "modified c",
                "added d",
                "synced",
            ]
            assert seen[4].object["metadata"]["labels"] == {"n": "a"}

    run(test)


def test_a_watch_that_breaks_goes_on_from_where_it_was() -> None:
    async def test() -> None:
        script = (
            listed(10, pod("a", 3)),
            events(("MODIFIED", pod("a", 11)), cut=b'{"type":"MODI'),
            failure(503, "ServiceUnavailable", "etcd is away"),
            events(("MODIFIED", pod("a", 12))),
        )
        async with served(*script, say_nothing) as (server, client):
            seen = await first(client, 6)
            assert told(seen) == ["added a", "synced", "modified a", "away", "synced", "modified a"]
            assert "closed the connection" in seen[3].why
            assert "resourceVersion=11&" in server.lines[2]

    run(test)


def test_refusals_are_raised_where_nothing_was_ever_seen() -> None:
    async def test() -> None:
        async with served(failure(403, "Forbidden", "you may not list pods")) as (_, client):
            with pytest.raises(Forbidden, match="you may not"):
                await first(client, 1)

    run(test)


def test_a_server_that_forgets_at_once_is_not_listed_again_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(watching, "asyncio", SimpleNamespace(sleep=sleep))
    forgets = events(("ERROR", {"code": 410, "message": "too old"}))

    async def test() -> None:
        rounds = 8
        async with served(*([listed(10, pod("a", 3)), forgets] * rounds), say_nothing) as (_, client):
            await first(client, 1 + rounds)
            assert len(pauses) >= rounds - 1
            assert min(pauses) > 0
            assert pauses[-1] > pauses[0] * 4

    run(test)


def test_a_watch_alone_tells_that_its_version_is_gone() -> None:
    async def test() -> None:
        async with served(events(("ADDED", pod("a", 1)), ("ERROR", {"code": 410, "message": "too old"}))) as (
            _,
            client,
        ):
            found = []

            async def watched() -> None:
                async for kind, obj in client.watch(PODS, since="1"):
                    found.append((kind, obj["metadata"]["name"]))

            with pytest.raises(Gone, match="too old"):
                await watched()
            assert found == [("ADDED", "a")]

    run(test)


def test_what_is_no_kubernetes_is_reported() -> None:
    async def test() -> None:
        async def page(exchange: Exchange) -> None:
            exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>")

        async with served(page) as (_, client):
            with pytest.raises(Unreachable, match="does not speak Kubernetes"):
                await client.get(CONFIGMAPS, "c")

        async def noise(exchange: Exchange) -> None:
            exchange.writer.write(b"SSH-2.0-OpenSSH\r\n\r\n")

        async with served(noise, patience=0.1) as (_, client):
            with pytest.raises(Unreachable, match="does not speak HTTP"):
                await client.get(CONFIGMAPS, "c")

        async with served(failure(422, "Invalid", causes=[{"field": "spec.x", "message": "is wrong"}])) as (_, client):
            with pytest.raises(ApiError) as told:
                await client.create(CONFIGMAPS, {"metadata": {"name": "x"}})
            assert told.value.causes == [("spec.x", "is wrong")]

    run(test)
