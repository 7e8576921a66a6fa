"""Charts in a browser: whose metrics they show, a loss that is nan, and what a reader has opened or enlarged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import browser
import pytest
from conformance.engines import Submitted, python, role
from playwright.sync_api import Page, Route, expect
from waiting import until

import trainmaster
from web import jobs
from web.conftest import NewPage, Screenshot, Served

pytestmark = pytest.mark.xdist_group("browser")

REPORTS = """
    import os, time
    from trainmaster import runtime
    task = runtime.task()
    step = 0
    while not os.path.exists({end!r}):
        step += 1
        runtime.progress(step=step, loss=1 / step + task.index)
        time.sleep(0.2)
"""


def chart(page: Page, title: str) -> Any:
    return page.locator("#charts figure", has=page.get_by_text(title, exact=True))


def served_charts(page: Page) -> list[dict[str, Any]]:
    answer = browser.evaluated(page, "fetch('metrics.json').then(answer => answer.text())")
    rows: list[dict[str, Any]] = json.loads(answer)["charts"]
    return rows


def test_charts_are_of_the_tasks_that_report_and_of_many_their_mean(
    tmp_path: Path, served: Served, page: Page, new_page: NewPage, screenshot: Screenshot
) -> None:
    end = tmp_path / "end"
    roles = {
        "ps": role(["sleep", "1000"], 8, counts=False),
        "worker": role(python(REPORTS.format(end=str(end))), 9, warm=False),
    }
    job = Submitted(trainmaster.submit({"name": "silent-ps", "files": [], "roles": roles}))
    try:
        address = served(job.id)
        page.goto(address)
        expect(chart(page, "loss")).to_contain_text("mean of 9 tasks")
        until(lambda: any(row["name"] == "metric.loss" and len(row["low"]) > 2 for row in served_charts(page)))
        plain = new_page(java_script_enabled=False, color_scheme="dark", viewport={"width": 360, "height": 800})
        plain.goto(address)
        expect(chart(plain, "loss")).to_contain_text("mean of 9 tasks")
        screenshot(page, "mean")
        screenshot(plain, "plain")
    finally:
        end.touch()
        job.run.kill("the test is over")
        job.end()


def test_a_loss_that_becomes_nan_is_said_and_marked(
    by_hand: jobs.ByHand, served: Served, page: Page, new_page: NewPage, screenshot: Screenshot
) -> None:
    address = served(by_hand.id)
    page.goto(address)
    by_hand.go_on(2)
    expect(chart(page, "loss")).to_be_visible()
    by_hand.diverge()
    expect(page.locator("#head")).to_contain_text("loss is nan or inf in worker:0, worker:1 since")
    expect(chart(page, "loss")).to_contain_text("nan or inf in worker:0, worker:1 since")
    expect(chart(page, "loss").locator(".now")).to_have_text("worker:0 nan or inf, worker:1 nan or inf")
    assert next(row["rows"][0]["nans"] for row in served_charts(page) if row["name"] == "metric.loss")
    screenshot(page, "nan")
    plain = new_page(java_script_enabled=False)
    plain.goto(address)
    expect(chart(plain, "loss")).to_contain_text("nan or inf in worker:0, worker:1 since")
    expect(chart(plain, "loss").locator("line.nan").first).to_be_attached()
    assert browser.violations(page) == []


def test_a_task_that_the_job_no_longer_has_keeps_its_pages_and_counts_no_more(
    tmp_path: Path, served: Served, page: Page, screenshot: Screenshot
) -> None:
    with jobs.by_hand(tmp_path / "job", least=1) as job:
        job.go_on(2)
        page.goto(served(job.id))
        expect(page.locator("#task-worker-3a-1")).to_contain_text("20 %")
        job.run.scale("worker", 1)
        expect(page.locator("#tasks tbody")).to_have_count(1)
        job.go_on(8)
        expect(page.locator("#head")).to_contain_text("80 %")
        expect(chart(page, "Progress").locator(".now")).to_have_text("80 %")
        lane = page.locator("#timeline .who", has_text="worker:1")
        screenshot(page, "left")
        lane.click()
        expect(page.locator("h1")).to_contain_text("left")
        expect(page.locator("#attempts")).to_contain_text("members")
        page.locator("#task-actions").get_by_role("link", name="Log").click()
        expect(page.locator(".log")).to_contain_text("step 2")
        expect(page.locator(".foot [role=status]")).to_have_text("")
        status = job.run.status()
        assert [(row["task"], row["state"]) for row in status["former"]] == [("worker:1", "left")]
        job.finish()
        job.end()


# Keeps the plots that the page draws, for what they show is on a canvas.
PLOTS = """
    let native;
    window.plots = [];
    const make = {construct: (target, given) => { const plot = new target(...given); window.plots.push(plot); return plot; }};
    Object.defineProperty(window, "uPlot", {get: () => native, set: (uPlot) => { native = new Proxy(uPlot, make); }});
"""
LOSS = "window.plots.find(plot => plot.root.closest('figure')?.textContent.startsWith('loss'))"


def test_what_a_reader_has_opened_and_enlarged_stays_so(by_hand: jobs.ByHand, served: Served, page: Page) -> None:
    def shown() -> list[float]:
        scale: list[float] = browser.evaluated(page, f"(({{min, max}}) => [min, max])({LOSS}.scales.x)")
        return scale

    def samples() -> int:
        return int(browser.evaluated(page, f"{LOSS}.data[0].length"))

    page.add_init_script(PLOTS)
    page.goto(served(by_hand.id))
    by_hand.go_on(2)
    expect(chart(page, "loss")).to_be_visible()
    by_hand.run.save()
    marks = page.locator("#timeline summary")
    marks.click()
    until(lambda: samples() > 4, what="enough samples")
    whole = shown()
    chart(page, "loss").scroll_into_view_if_needed()
    box = chart(page, "loss").locator(".u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40, steps=4)
    page.mouse.up()
    enlarged = shown()
    assert enlarged[1] - enlarged[0] < whole[1] - whole[0]
    before, said = samples(), marks.inner_text()
    by_hand.run.save()
    expect(marks).not_to_have_text(said)
    until(lambda: samples() > before + 2, what="further samples")
    assert shown() == enlarged

    def reorder(route: Route) -> None:
        answer = route.fetch()
        charts = answer.json()
        for made in charts["charts"]:
            made["rows"].reverse()
        route.fulfill(response=answer, json=charts)

    drawn, order = int(browser.evaluated(page, "window.plots.length")), page.locator("figure.chart").all_inner_texts()
    page.route(re.compile("metrics.json"), reorder)
    until(lambda: browser.evaluated(page, "window.plots.length") > drawn, what="the charts of other tasks")
    assert shown() == enlarged, "as where the job's tasks change"
    assert [text[:4] for text in page.locator("figure.chart").all_inner_texts()] == [text[:4] for text in order]
    page.unroute_all()
    expect(page.locator("#timeline details")).to_have_attribute("open", "")
