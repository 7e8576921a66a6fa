"""Makes the pictures of pages: `python docs/pictures.py docs/images`, some minutes. Nothing in a picture is made up.

Some jobs run under a state directory of their own; one of them loses a program. Then `tm ui` serves its pages to the system's Chromium.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import browser
from waiting import until

TRAINS = """
import math, random, sys, time
from trainmaster import runtime

steps = int(sys.argv[1])
dice = random.Random(runtime.task().index)
weights = [0.0] * 6  # of a logistic regression between two moons

def features(x, y):
    return 1.0, x, y, x * x, x ** 3, y * y

def point():
    label, angle = dice.random() < 0.5, dice.uniform(0, math.pi)
    x, y = (math.cos(angle), math.sin(angle)) if label else (1 - math.cos(angle), 0.5 - math.sin(angle))
    return features(x + dice.gauss(0, 0.1), y + dice.gauss(0, 0.1)), label

for step in range(1, steps + 1):
    loss = right = 0
    for given, label in (point() for _ in range(50)):
        chance = 1 / (1 + math.exp(-sum(map(float.__mul__, weights, given))))
        loss -= math.log(max(chance if label else 1 - chance, 1e-9)) / 50
        right += (chance > 0.5) == label
        weights = [weight + 0.05 * (label - chance) * part for weight, part in zip(weights, given)]
    runtime.progress(step / steps, step=step, loss=loss, accuracy=right / 50)
    if step % 50 == 0:
        print(f"step {step}: loss {loss:.4f}, accuracy {right / 50:.2f}", flush=True)
    time.sleep(0.02)
"""
FAILS = "echo reading reviews.csv; sleep 3; echo 'ValueError: could not convert string to float: good' >&2; exit 1"
STEPS = 6000  # of the job that is shown while it runs
KILLED_AT, SHOWN_AT = 1200, 4500  # steps of it
WIDE, TALL, NARROW = {"width": 1280, "height": 650}, {"width": 1280, "height": 1090}, {"width": 390, "height": 1080}


def main() -> None:
    """Run the jobs and write the pictures."""
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        os.environ |= {"TRAINMASTER_STATE_DIR": f"{folder}/state", "TRAINMASTER_RUNTIME_DIR": f"{folder}/run"}
        os.chdir(folder)
        Path("moons.py").write_text(TRAINS)
        wait(tm("submit", "-n", "2", "--name", "moons", "--", "python", "moons.py", "300"))
        wait(tm("submit", "--name", "sentiment", "--restart", "never", "--", "sh", "-c", FAILS))
        options = ["-n", "3", "--name", "two-moons", "--cores", "0.5", "--memory", "256MiB"]
        shown = tm("submit", *options, "--", "python", "moons.py", str(STEPS))
        wait_for_step(shown, KILLED_AT)
        tm("kill", shown, "worker:1", "--signal", "KILL")
        wait_for_step(shown, SHOWN_AT)
        try:
            photograph(shown, target)
        finally:
            tm("kill", shown)


def tm(*words: str) -> str:
    return subprocess.run(["tm", *words], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def wait_for_step(job: str, step: int) -> None:
    until(lambda: (json.loads(tm("status", "--json", job))["tasks"][0].get("step") or 0) >= step, 300)


def wait(job: str) -> None:
    subprocess.run(["tm", "wait", job], check=False, stdout=subprocess.DEVNULL)


def photograph(job: str, target: Path) -> None:
    """Write the pictures of the job's page, wide and narrow, of the list of jobs, and of a log."""
    with (
        subprocess.Popen(["tm", "ui", "--no-browser"], stdout=subprocess.PIPE, text=True) as pages,
        browser.started() as chromium,
    ):
        assert pages.stdout is not None
        address = pages.stdout.readline().strip()
        base = address.partition("?")[0].rstrip("/")
        try:
            page = chromium.new_page(color_scheme="light")
            page.goto(address)
            for name, path in (("jobs", "/"), ("job", f"/jobs/{job}/"), ("log", f"/jobs/{job}/logs/worker:0")):
                page.set_viewport_size(TALL if name == "job" else WIDE)
                page.goto(base + path)
                page.wait_for_timeout(3000)  # charts are drawn, figures have come
                page.screenshot(path=target / f"{name}.png")
            page.set_viewport_size(NARROW)
            page.emulate_media(color_scheme="dark")
            page.goto(f"{base}/jobs/{job}/")
            page.wait_for_timeout(3000)
            page.screenshot(path=target / "job-narrow.png")
        finally:
            pages.terminate()


if __name__ == "__main__":
    main()
