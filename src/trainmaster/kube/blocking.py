"""The calls of `client.Client` for code without a loop.

One thread a process runs a loop for all of them; a call hands its coroutine over and waits. Calls may come from any thread at once. After a
fork the child has no such thread, and starts its own with new connections; those of its parent it leaves alone.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from trainmaster.kube.client import Client, Object, Objects
from trainmaster.kube.config import Config
from trainmaster.kube.kinds import Kind

T = TypeVar("T")
_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}  # process -> its loop


def loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process's thread."""
    global _lock
    if (event_loop := _loops.get(os.getpid())) is not None:
        return event_loop
    with _lock:
        if (event_loop := _loops.get(os.getpid())) is None:
            event_loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=event_loop.run_forever, name="kube", daemon=True).start()
        return event_loop


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()  # the parent may have held it


os.register_at_fork(after_in_child=_renew_lock)


class Blocking:
    """Blocking has the calls of `Client`, which describes them."""

    def __init__(self, config: Config, *, timeout: float = 30.0, patience: float = 10.0, concurrency: int = 24) -> None:
        self.config, self.namespace = config, config.namespace
        self._options: dict[str, Any] = {"timeout": timeout, "patience": patience, "concurrency": concurrency}
        self._clients: dict[int, Client] = {}  # process -> its client

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of `client` and return its value. It is cancelled where the caller is interrupted."""
        future = asyncio.run_coroutine_threadsafe(call, loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def client(self) -> Client:
        """Return this process's client, for coroutines that `run` runs."""
        if (client := self._clients.get(os.getpid())) is None:
            client = self._clients.setdefault(os.getpid(), Client(self.config, **self._options))
        return client

    def close(self) -> None:
        if (client := self._clients.pop(os.getpid(), None)) is not None:
            self.run(client.close())

    def get(self, kind: Kind, name: str, namespace: str = "", metadata: bool = False) -> Object:
        return self.run(self.client.get(kind, name, namespace, metadata))

    def list(
        self,
        kind: Kind,
        namespace: str = "",
        labels: str = "",
        fields: str = "",
        limit: int = 500,
        metadata: bool = False,
    ) -> tuple[Objects, str]:
        return self.run(self.client.list(kind, namespace, labels, fields, limit, metadata))

    def create(
        self, kind: Kind, obj: Mapping[str, Any], namespace: str = "", dry_run: bool = False, strict: bool = False
    ) -> Object:
        return self.run(self.client.create(kind, obj, namespace, dry_run, strict))

    def replace(self, kind: Kind, obj: Mapping[str, Any], namespace: str = "", sub: str = "") -> Object:
        return self.run(self.client.replace(kind, obj, namespace, sub))

    def patch(
        self,
        kind: Kind,
        name: str,
        body: Any,
        how: str = "merge",
        namespace: str = "",
        sub: str = "",
        dry_run: bool = False,
    ) -> Object:
        return self.run(self.client.patch(kind, name, body, how, namespace, sub, dry_run))

    def delete(
        self, kind: Kind, name: str, namespace: str = "", grace: int | None = None, uid: str = "", propagation: str = ""
    ) -> bool:
        return self.run(self.client.delete(kind, name, namespace, grace, uid, propagation))

    def delete_all(self, kind: Kind, labels: str, namespace: str = "", grace: int | None = None) -> None:
        self.run(self.client.delete_all(kind, labels, namespace, grace))

    def log(self, pod: str, namespace: str = "") -> bytes:
        return self.run(self.client.log(pod, namespace))

    def review(self, verb: str, kind: Kind, sub: str = "", namespace: str = "", name: str = "") -> bool:
        return self.run(self.client.review(verb, kind, sub, namespace, name))

    def version(self) -> str:
        return self.run(self.client.version())

    def connect(self, pod: str, port: int, namespace: str = "") -> socket.socket:
        return self.run(self.client.connect(pod, port, namespace))
