"""The two places whose jobs `tm ui` shows: this machine, and a storage place that is named by its URL."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from trainmaster.client.jobs.places import job_storage, state_dir
from trainmaster.client.ui.board import Board
from trainmaster.client.ui.sources import OfPlace, OfThisMachine
from trainmaster.core.errors import NotFound
from trainmaster.host.places import cache_dir
from trainmaster.log.index import Jobs, OfMachine, OfStorage
from trainmaster.log.storage import LocalStorage, require_inside, storage_for

if TYPE_CHECKING:
    from trainmaster.client.ui.sources import Source
    from trainmaster.web.contract import Acts


class ThisMachine:
    """The jobs that this machine knows. `acts`: whether its user may do something to them from the pages."""

    words = "on this machine"

    def __init__(self, acts: bool) -> None:
        self._acts = acts

    def board(self) -> Board:
        from trainmaster.client.jobs.sweep import sweep

        return Board(lambda: Jobs(OfMachine(LocalStorage(state_dir()))), local=True, before=sweep)

    def source(self, job: str) -> Source:
        if not job_storage(job).is_dir():
            raise NotFound(f"there is no job {job}", mend="see them all: tm list", anchor="no-such-job")
        return OfThisMachine(job)

    def acts(self, job: str) -> Acts | None:
        from trainmaster.client.ui.acts import ActsOn

        return ActsOn(job) if self._acts else None


class StoragePlace:
    """The jobs whose storages are the folders of a place."""

    def __init__(self, url: str) -> None:
        self.words = url
        self._url = url.rstrip("/") or url
        self._root = storage_for(self._url)
        self.is_empty = not self._root.entries("")  # raises StorageFailed where it cannot be read

    def board(self) -> Board:
        cache = LocalStorage(cache_dir() / "jobs" / hashlib.sha256(self._root.url.encode()).hexdigest()[:24])
        return Board(lambda: Jobs(OfStorage(self._root), cache), local=self._root.local)

    def source(self, job: str) -> Source:
        if self._root.local:
            require_inside(self._root.url, job)
        source = OfPlace(job, storage_for(f"{self._root.url.rstrip('/')}/{job}"))
        source.check()
        return source

    def acts(self, job: str) -> Acts | None:
        return None
