"""Traces of the real YARN engine, recorded on a cluster: the simulated engine can do all that they tell, and not just anything.

They are made by `RECORD_TRACES=tests/simulation/traces pytest -m full tests/conformance/test_yarn_traces.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainmaster.simulation.traces import reproduce
from trainmaster.simulation.world import Violation

TRACES = sorted(Path(__file__).with_name("traces").glob("*.json"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_simulated_engine_reproduces_a_trace(path: Path) -> None:
    reproduce(json.loads(path.read_text()))


A, B = ["worker:0", 1], ["worker:1", 1]
OPEN, ASK = {"do": "open", "keys": []}, {"do": "ask", "keys": [A]}
GRANTED, EXITED = {"tells": "granted", "key": A}, {"tells": "exited", "key": A}


@pytest.mark.parametrize(
    ("trace", "row"),
    [
        ([OPEN, GRANTED], 1),  # nobody asked
        ([OPEN, ASK, {"tells": "granted", "key": B}], 2),
        ([OPEN, EXITED], 1),
        ([OPEN, ASK, GRANTED, EXITED], 3),  # nothing has ended
        ([OPEN, ASK, GRANTED, {"tells": "lost", "key": A}], 3),
        ([OPEN, ASK, GRANTED, {"happens": "exit", "key": A}, EXITED, GRANTED], 5),
        ([OPEN, ASK, GRANTED, {"do": "open", "keys": []}], 3),  # it holds one
        ([OPEN, ASK, {"tells": "warned", "key": A}], 2),
        ([OPEN, ASK, GRANTED, {"tells": "waiting"}], 3),  # for nothing
    ],
)
def test_what_no_run_does_is_named(trace: list[dict[str, Any]], row: int) -> None:
    with pytest.raises(Violation, match=rf"never does row {row}: "):
        reproduce(trace)


def test_what_happens_by_chance_is_among_its_runs() -> None:
    exit_ = {"happens": "exit", "key": A}
    reproduce([OPEN, ASK, EXITED])  # it could not be started
    reproduce([OPEN, ASK, GRANTED, exit_, EXITED, {"do": "ask", "keys": [A]}, EXITED])  # its fate, told again
    reproduce([OPEN, ASK, {"tells": "waiting"}, {"tells": "waiting"}, GRANTED, exit_, EXITED])
    reproduce([OPEN, ASK, GRANTED, {"happens": "preempt", "key": A}, {"tells": "warned", "key": A}, EXITED])
    reproduce([OPEN, ASK, GRANTED, exit_, {"do": "open", "keys": []}])  # its end was never told
