"""The checkpoint sets that lie somewhere, as tests look at them."""

from __future__ import annotations

from trainmaster.data import checkpoints
from trainmaster.data.checkpoints import Set
from trainmaster.data.store.stores import store_for


def sets(url: str) -> list[Set]:
    """Those whose manifests are there, oldest first."""
    store = store_for(url)
    found = (checkpoints._read(store, number) for number in checkpoints._numbers(store))
    return [made for made in found if made is not None]


def put_back(url: str, path: object) -> Set | None:
    """Have the newest whole set at the path."""
    found = checkpoints.newest(url)
    return None if found is None else checkpoints.restore(url, str(path), found.number)
