"""What garbage collections of a master leave out, and find again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from trainmaster import garbage


@pytest.fixture
def watch() -> Iterator[None]:
    gc.collect()
    gc.callbacks.append(watch := garbage.Watch())
    yield
    gc.callbacks.remove(watch)
    gc.unfreeze()


class Circle:
    def __init__(self) -> None:
        self.itself = self


def test_what_a_slow_collection_kept_is_left_out_until_the_next_whole_one(
    watch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    circle = Circle()
    died = weakref.ref(circle)
    monkeypatch.setattr(garbage, "SLOW", 0.0)
    gc.collect()
    monkeypatch.setattr(garbage, "SLOW", 1e9)
    del circle
    gc.collect()
    assert died() is not None
    monkeypatch.setattr(garbage, "WHOLE_EVERY", 0.0)
    gc.collect()
    assert died() is None


def test_a_fast_collection_leaves_nothing_out(watch: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "SLOW", 1e9)
    before = gc.get_freeze_count()
    gc.collect()
    assert gc.get_freeze_count() == before
