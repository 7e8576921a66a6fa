"""The containers of a simulated master: the real book between it and the simulated engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from trainmaster.core.containers import Book, Request, Seen, Work
from trainmaster.core.machine.stimuli import Change, Key
from trainmaster.simulation.engine import Engine, Master
from trainmaster.simulation.world import World


class Containers(Master):
    """The containers of one master, which `tell` tells of changes. `is_alive`: whether it hears of any."""

    def __init__(
        self, world: World, engine: Engine, epoch: int, tell: Callable[..., None], is_alive: Callable[[], bool]
    ) -> None:
        self.world, self.engine, self.epoch = world, engine, epoch
        self._tell, self._is_alive = tell, is_alive
        self.book = Book(engine.kind.habits)
        self._woken = float("inf")

    def open(self, keys_held: Collection[Key]) -> None:
        self._do(self.book.open(self.engine.open(self.epoch, self), keys_held, self.world.now))

    def ask(self, requests: Sequence[Request]) -> None:
        self._do(self.book.ask(requests, self.world.now))

    def release(self, key: Key) -> None:
        self._do(self.book.release(key))

    def close(self) -> None:
        self._do(self.book.close())
        self.engine.unregister(self.epoch)

    # -- what the engine tells --

    def see(self, *seen: Seen) -> None:
        if self._is_alive():
            self._do(self.book.see(seen, self.world.now))

    def deny(self, key: Key) -> None:
        if self._is_alive():
            self._do(self.book.deny(key, self.world.now))

    def refuse(self, key: Key, why: str) -> None:
        if self._is_alive():
            self._do(self.book.refuse(key, why))

    def forget(self) -> None:
        if self._is_alive():
            self._do(self.book.forget(self.world.now))

    def report(self, *changes: Change) -> None:
        self._tell(*changes)

    # -- what follows --

    def _do(self, work: Work) -> None:
        self._tell(*work.changes)
        self.engine.delete(self.epoch, work.delete)
        self.engine.create(self.epoch, work.create)
        self.engine.start(self.epoch, work.start)
        due = self.book.next()
        if due is not None and due < self._woken:
            self._woken = due
            self.world.at(max(0.0, due - self.world.now), self._tick)

    def _tick(self) -> None:
        self._woken = float("inf")
        if self._is_alive():
            self._do(self.book.tick(self.world.now))
