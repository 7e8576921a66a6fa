"""The savers of states that a test began: they store what is left, and their processes end."""

from __future__ import annotations

from trainmaster.runtime.states import saver


def end_all() -> None:
    for one in saver._savers.values():
        one.wait()
        one._end_process()
