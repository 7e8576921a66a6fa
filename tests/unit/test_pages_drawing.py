"""Drawings: whatever a program or a user wrote stays text, and figures are where they belong."""

from __future__ import annotations

import math
import xml.etree.ElementTree as Xml

import attrs
from hypothesis import given
from hypothesis import strategies as some

from trainmaster.core.metrics import Points, Series
from trainmaster.core.timeline import Attempt
from trainmaster.web.pages.charts import charts, drawn, figure, form, title
from trainmaster.web.pages.drawing import WIDTH, Range, Span, bars, line, spark, ticks
from trainmaster.web.pages.job import row, spans

_HOSTILE = '<script>alert(1)</script>" onload="x'
_TEXT = some.text(alphabet=some.characters(codec="utf-8", categories=("L", "N", "P", "S", "Z")))


@given(text=_TEXT)
def test_a_bar_is_well_formed_whatever_its_text_is(text: str) -> None:
    drawing = bars([Span(1.0, 2.0, text, text, text)], Range(0.0, 4.0))
    root = Xml.fromstring(drawing)
    [bar] = root.iter("rect")
    assert bar.get("class") == " ".join(bar.get("class", "").split("\n")) or bar.get("class") is not None
    assert [part.text or "" for part in root.iter("title")] == [text.replace("\r\n", "\n").replace("\r", "\n")]
    assert not [part for part in root.iter() if part.tag not in ("svg", "a", "rect", "title")]


def test_hostile_titles_of_marks_stay_text() -> None:
    drawing = ticks([(1.0, _HOSTILE, _HOSTILE)], Range(0.0, 2.0))
    assert "<script" not in drawing
    assert [part.tag for part in Xml.fromstring(drawing).iter()] == ["svg", "line", "title"]


@given(begin=some.floats(0, 2e9), length=some.floats(0, 1e6), at=some.floats(-1e9, 4e9))
def test_every_time_is_within_the_drawing(begin: float, length: float, at: float) -> None:
    assert 0 <= Range(begin, begin + length).x(at) <= WIDTH


@given(values=some.lists(some.none() | some.floats(-1e12, 1e12), max_size=80), top=some.floats(0, 1e12))
def test_lines_stay_within_their_height_and_break_at_gaps(values: list[float | None], top: float) -> None:
    root = Xml.fromstring(f"<svg>{line(values, top, 20)}</svg>")
    points = [point.split(",") for part in root for point in part.get("points", "").split()]
    assert all(0 <= float(y) <= 20 and 0 <= float(x) <= WIDTH for x, y in points)
    runs = sum(value is not None and (number == 0 or values[number - 1] is None) for number, value in enumerate(values))
    assert len(root) == runs


def test_a_series_without_a_value_draws_nothing() -> None:
    assert spark(None) == ""
    assert spark(Series("worker:0", "cpu", [1.0], [None], [None])) == ""


def test_a_row_draws_the_use_of_each_of_the_tasks_gpus() -> None:
    uses = [
        Series(task, f"gpu.{n}.util", [1.0, 2.0], [5.0, 90.0], [5.0, 90.0])
        for task, n in (("worker:0", 3), ("worker:0", 1), ("worker:1", 0))
    ]
    task = {"task": "worker:0", "state": "succeeded", "attempt": 1}
    [first, second] = row(task, [], {(use.task, use.name): use for use in uses})["devices"]
    assert [Xml.fromstring(drawing).get("aria-label") for drawing in (first, second)] == [
        "use of GPU 1",
        "use of GPU 3",
    ]


def test_charts_say_what_was_asked_for_only_where_all_asked() -> None:
    series = [
        Series("", "memory", [1.0, 2.0], [1e9, 2e9], [1e9, 2e9]),
        Series("", "metric.<b>loss", [1.0], [0.5], [0.5]),
    ]
    tasks = [{"task": f"worker:{index}", "role": "worker", "node": "a"} for index in range(2)]
    job = {"roles": {"worker": {"resources": {"memory": "2GiB"}}}}
    memory, loss = charts(series, "", tasks, job)
    assert memory["lines"] == {"asked": 2 * 2 * 1024**3}
    assert drawn(memory)["asked"] == "4 GiB"
    assert loss["title"] == "<b>loss", "templates escape it"
    assert charts(series, "", tasks, {"roles": {"worker": {"resources": {}}}})[0]["lines"] == {}


def test_forms_and_titles() -> None:
    assert [form(name) for name in ("memory", "gpu.0.memory", "gpu.0.util", "progress", "metric.memory")] == [
        "bytes", "bytes", "percent", "part", "number",
    ]  # fmt: skip
    assert (title("gpu.1.util"), title("gpu.all.memory")) == ("GPU 1 use", "GPUs' memory")
    assert [figure(0.4251, "part"), figure(None, "bytes"), figure(1234.5, "number"), figure(0.01234, "number")] == [
        "43 %", "", "1,234", "0.0123",
    ]  # fmt: skip


def losses(tasks: int, nan: int = -1) -> list[Series]:
    """Return the loss of so many tasks, from 1.0 down; that of one task is nan in the end."""
    times = [float(at) for at in range(100, 120)]
    rows = []
    for task in range(tasks):
        values: list[float | None] = [task + 1.0 - at / 1000 for at in times]
        nans = times[-3:] if task == nan else []
        values[-3:] = [None] * 3 if nans else values[-3:]
        rows.append(Series(f"worker:{task}", "metric.loss", times, values, values, nans))
    return rows


def test_more_tasks_than_lines_are_their_mean_between_the_lowest_and_the_highest() -> None:
    (chart,) = charts(losses(8), "", [], {})
    assert [row["task"] for row in chart["rows"]] == [f"worker:{task}" for task in range(8)]
    (chart,) = charts(losses(12), "", [], {})
    (row,) = chart["rows"]
    assert row["task"] == "mean of 12 tasks"
    assert [low < mean < high for low, mean, high in zip(chart["low"], row["values"], chart["high"], strict=True)] == [
        True
    ] * 11
    assert round(row["values"][0], 1) == 6.4
    assert "mean of 12 tasks" in drawn(chart)["tasks"]


def test_a_loss_that_became_nan_is_marked_and_said() -> None:
    for tasks in (2, 12):
        (chart,) = charts(losses(tasks, nan=1), "", [], {})
        assert chart["nan"] == "nan or inf in worker:1 since 1970-01-01 00:01:57 UTC"
        assert drawn(chart)["nan"] == chart["nan"]
        assert 'class="nan"' in drawn(chart)["image"]
    (chart,) = charts(losses(1, nan=0), "", [], {})
    assert drawn(chart)["last"] == "nan or inf"
    (row,) = losses(1, nan=0)
    past = attrs.evolve(row, times=[*row.times, 120.0], values=[*row.values, 0.5])
    assert charts([past], "", [], {})[0]["nan"] == "was nan or inf in worker:0, last at 1970-01-01 00:01:59 UTC"


def test_a_loss_may_become_nan_while_the_clock_of_a_new_master_stands_still() -> None:
    points = Points()
    for at, value in ((100.0, 0.5), (90.0, math.nan)):
        points.add(at, value)
    (chart,) = charts([points.series("worker:0", "metric.loss", 0.0)], "", [], {})
    assert chart["nan"] == "nan or inf in worker:0 since 1970-01-01 00:01:40 UTC"


def test_all_of_many_tasks_may_be_nan() -> None:
    rows = [
        Series(f"worker:{task}", "metric.loss", [1.0, 2.0], [None, None], [None, None], [1.0, 2.0]) for task in range(9)
    ]
    (chart,) = charts(rows, "", [], {})
    assert drawn(chart)["last"] == "nan or inf"
    assert "since" in chart["nan"]


def test_waiting_for_a_container_is_drawn_as_pending_and_not_as_staging() -> None:
    whole = Range(0.0, 100.0)

    def kinds(**times: float) -> list[tuple[str, float, float]]:
        return [(span.kind, span.begin, span.end) for span in spans([Attempt("worker:0", 1, **times)], whole)]

    assert kinds(began=0.0) == [("pending", 0.0, 100.0)]
    assert kinds(began=0.0, granted=60.0) == [("pending", 0.0, 60.0), ("staging", 60.0, 100.0)]
    assert kinds(began=0.0, granted=60.0, started=70.0)[:2] == [("pending", 0.0, 60.0), ("staging", 60.0, 70.0)]
    assert kinds(began=50.0, staging=50.0, started=70.0)[0] == ("staging", 50.0, 70.0)
    assert kinds(began=0.0, ended=20.0) == [("pending", 0.0, 20.0)]
