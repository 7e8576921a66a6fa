"""The client of Kubernetes' API on a real cluster: objects, watches over the server's death, logs, ports, evictions, rights."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import attrs
import pytest
from kubernetes import own_kubernetes
from waiting import until_async

from trainmaster.clusters.kubernetes import Cluster, Settings
from trainmaster.kube.blocking import Blocking
from trainmaster.kube.client import Client
from trainmaster.kube.config import load
from trainmaster.kube.credentials import Credentials
from trainmaster.kube.errors import (
    ApiError,
    ConfError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unauthorized,
    Unreachable,
)
from trainmaster.kube.kinds import CONFIGMAPS, NODES, PODS, SECRETS
from trainmaster.kube.watching import Seen, follow

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.full]

ECHO = """
import signal, socket, sys, threading
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
listener = socket.create_server(("127.0.0.1", 7777))
print("hello", flush=True)
def echo(one):
    while data := one.recv(65536):
        one.sendall(data)
    one.close()
while True:
    threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
"""


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(240):
            await test()

    asyncio.run(bounded())


def configmap(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


@asynccontextmanager
async def echo(client: Client) -> AsyncIterator[str]:
    """A pod that passes "restricted", and answers on port 7777 with what it is told."""
    name = f"echo-{secrets.token_hex(4)}"
    container = {
        "name": "c", "image": os.environ["TRAINMASTER_KUBERNETES_IMAGE"], "imagePullPolicy": "Never",
        "command": ["python3", "-c", ECHO],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    spec = {
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    }  # fmt: skip
    await client.create(PODS, {"metadata": {"name": name}, "spec": spec})

    async def says_hello() -> bool:
        with suppress(ApiError):  # its container is still being made
            return await client.log(name) == b"hello\n"
        return False

    try:
        await until_async(says_hello)
        yield name
    finally:
        await client.delete(PODS, name, grace=0)


# -- objects --


def test_the_life_of_an_object(on_kubernetes: Cluster) -> None:
    async def test() -> None:
        async with Client(load()) as client:
            name = f"life-{secrets.token_hex(4)}"
            made = await client.create(CONFIGMAPS, configmap(name, {"a": "b"}, k="1"))
            with pytest.raises(Conflict) as told:
                await client.create(CONFIGMAPS, configmap(name))
            assert told.value.exists
            assert not told.value.doubtful
            await client.replace(CONFIGMAPS, {**made, "data": {"k": "2"}})
            with pytest.raises(Conflict) as told:
                await client.replace(CONFIGMAPS, {**made, "data": {"k": "3"}})
            assert not told.value.exists
            await client.patch(CONFIGMAPS, name, {"data": {"m": "1"}})
            await client.patch(CONFIGMAPS, name, {"data": {"s": "1"}}, "strategic")
            await client.patch(CONFIGMAPS, name, [{"op": "add", "path": "/data/j", "value": "1"}], "json")
            applied = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}}
            await client.patch(CONFIGMAPS, name, applied, "apply")
            there = await client.get(CONFIGMAPS, name)
            assert there["data"] == {"k": "2", "m": "1", "s": "1", "j": "1", "a": "1"}
            about = await client.get(CONFIGMAPS, name, metadata=True)
            assert "data" not in about
            assert about["metadata"]["uid"] == there["metadata"]["uid"]
            assert not await client.delete(CONFIGMAPS, name, uid="another")
            assert await client.delete(CONFIGMAPS, name, uid=there["metadata"]["uid"])
            assert not await client.delete(CONFIGMAPS, name)
            with pytest.raises(NotFound):
                await client.get(CONFIGMAPS, name)

    run(test)


def test_what_is_tried_out_is_not_made(on_kubernetes: Cluster) -> None:
    async def test() -> None:
        async with Client(load()) as client:
            name = f"dry-{secrets.token_hex(4)}"
            await client.create(CONFIGMAPS, configmap(name), dry_run=True)
            with pytest.raises(NotFound):
                await client.get(CONFIGMAPS, name)
            with pytest.raises(ApiError, match='unknown field "daata"'):
                await client.create(CONFIGMAPS, {**configmap(name), "daata": {}}, dry_run=True, strict=True)
            with pytest.raises(Invalid) as told:
                await client.create(CONFIGMAPS, configmap("No_Name"), dry_run=True)
            assert [field for field, _ in told.value.causes] == ["metadata.name"]

    run(test)


def test_many_are_made_listed_in_pages_and_deleted(on_kubernetes: Cluster) -> None:
    async def test() -> None:
        async with Client(load()) as client:
            mark = {"many": secrets.token_hex(4)}
            labels = f"many={mark['many']}"
            await asyncio.gather(
                *(client.create(CONFIGMAPS, configmap(f"{mark['many']}-{n}", mark)) for n in range(300))
            )
            for limit, metadata in ((500, False), (70, True)):
                found, version = await client.list(CONFIGMAPS, labels=labels, limit=limit, metadata=metadata)
                assert len({row["metadata"]["name"] for row in found}) == 300
                assert version
            await client.delete_all(CONFIGMAPS, labels)
            assert (await client.list(CONFIGMAPS, labels=labels))[0] == []

    run(test)


# -- who one is --


def test_rights_are_asked_and_refusals_told(on_kubernetes: Cluster) -> None:
    async def test() -> None:
        async with Client(load()) as client:
            asked = ((("create", PODS), True), (("get", PODS, "portforward"), True), (("list", NODES), False))
            assert [await client.review(*given) for given, _ in asked] == [allowed for _, allowed in asked]
            with pytest.raises(Forbidden, match="cannot list resource"):
                await client.list(NODES)
            with pytest.raises(Forbidden):
                await client.list(SECRETS, namespace="kube-system")
            assert (await client.version()).startswith("v1.")
        config = load()
        async with Client(attrs.evolve(config, credentials=Credentials(token="expired"))) as client:
            with pytest.raises(Unauthorized):
                await client.list(PODS)
        async with Client(attrs.evolve(config, ca=None)) as client:
            with pytest.raises(ConfError, match="is not trusted"):
                await client.list(PODS)
        async with Client(attrs.evolve(config, ca=None, insecure=True)) as client:
            await client.list(PODS)

    run(test)


def test_a_client_certificate_is_shown(on_kubernetes: Cluster) -> None:
    async def test() -> None:
        async with Client(load(path=str(on_kubernetes.kubeconfig("edit-by-certificate")))) as client:
            assert await client.review("create", PODS)
            await client.list(PODS)

    run(test)


# -- pods --


def test_a_port_of_a_pod_is_reached(on_kubernetes: Cluster) -> None:
    async def test() -> None:
        async with Client(load()) as client, echo(client) as pod:
            stream = await client.forward(pod, 7777)
            data = os.urandom(1 << 20)
            back = bytearray()

            async def read() -> None:
                while len(back) < len(data):
                    back.extend(await stream.read())

            reading = asyncio.create_task(read())
            await stream.write(data)
            await reading
            assert bytes(back) == data
            await stream.close()
            with pytest.raises(NotFound):
                await client.forward("there-is-none", 7777)
            refused = await client.forward(pod, 7778)
            with pytest.raises(Unreachable, match="connection refused"):
                await refused.read()
            await refused.close()

    run(test)


def test_code_without_a_loop_reaches_a_port_too_also_after_a_fork(on_kubernetes: Cluster) -> None:
    blocking = Blocking(load())

    def talk(word: bytes) -> None:
        with blocking.connect(pod, 7777) as line:
            line.settimeout(60)
            line.sendall(word)
            assert line.recv(100) == word

    async def test() -> None:
        nonlocal pod
        async with Client(load()) as client, echo(client) as pod:
            await asyncio.to_thread(talk, b"before")
            if (child := os.fork()) == 0:
                status = 1
                try:
                    asyncio.events._set_running_loop(None)
                    talk(b"in a child")
                    status = 0
                finally:
                    os._exit(status)
            assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
            threads = [threading.Thread(target=talk, args=(b"%d" % n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            await asyncio.to_thread(lambda: [thread.join() for thread in threads])
            assert await asyncio.to_thread(blocking.log, pod) == b"hello\n"

    pod = ""
    run(test)
    blocking.close()


def test_an_eviction_is_told_by_a_condition(on_kubernetes: Cluster) -> None:
    async def test() -> None:
        async with Client(load()) as client, echo(client) as pod:
            warned: list[Seen] = []

            async def watch() -> None:
                async with aclosing(follow(client, PODS, fields=f"metadata.name={pod}")) as seen:
                    async for one in seen:
                        warned.append(one)
                        if one.kind == "deleted":
                            return

            watching = asyncio.create_task(watch())
            await until_async(lambda: [one for one in warned if one.kind == "synced"])
            await client.evict(pod)
            await watching
            conditions = [c["type"] for one in warned for c in one.object.get("status", {}).get("conditions", ())]
            assert "DisruptionTarget" in conditions

    run(test)


# -- a server that dies --


def test_nothing_is_missed_over_the_servers_death() -> None:
    """Of objects that come, change and go while the API server dies, is stopped and is started, each one's last state is seen."""

    async def test(cluster: Cluster) -> None:
        config = load(path=str(cluster.kubeconfig("edit")))
        async with Client(config, patience=60.0) as client, Client(config) as watcher:
            state: dict[str, str] = {}
            kinds: list[str] = []

            async def watch() -> None:
                async with aclosing(follow(watcher, CONFIGMAPS, labels="death=1")) as seen:
                    async for one in seen:
                        kinds.append(one.kind)
                        if one.kind in ("added", "modified"):
                            state[one.object["metadata"]["name"]] = one.object["data"]["v"]
                        elif one.kind == "deleted":
                            del state[one.object["metadata"]["name"]]

            watching = asyncio.create_task(watch())
            await until_async(lambda: "synced" in kinds)

            async def write(name: str) -> None:
                with suppress(Conflict):  # its own earlier try
                    await client.create(CONFIGMAPS, configmap(name, {"death": "1"}, v="0"))
                for version in range(1, 6):
                    await client.patch(CONFIGMAPS, name, {"data": {"v": str(version)}})
                if int(name[1:]) % 3 == 0:
                    await client.delete(CONFIGMAPS, name)

            writing = [asyncio.create_task(write(f"d{n}")) for n in range(30)]
            await until_async(lambda: len(state) > 5)
            daemon = cluster.daemon("kube-apiserver")
            await asyncio.to_thread(daemon.kill)
            await until_async(lambda: "away" in kinds)
            await asyncio.to_thread(daemon.start)
            await asyncio.gather(*writing)
            wanted = {f"d{n}": "5" for n in range(30) if n % 3}
            await until_async(lambda: state == wanted, what=lambda: (state, kinds[-5:]))
            assert kinds[-1] != "away"
            watching.cancel()

    with own_kubernetes(Settings(nodes=0, simulated=1)) as cluster:
        run(lambda: test(cluster))
