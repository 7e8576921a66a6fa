"""A program that a test leads by files in the folder at argv[1].

It trains up to the step that `steps` holds, and each step is reported, printed and written into the output. `nan` has its loss be nan,
`fail` has it fail, `end` end well. `text` is the name of its phase and of a metric, and printed at each step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from trainmaster import runtime

folder, total = Path(sys.argv[1]), int(sys.argv[2])
task, text = runtime.task(), (folder / "text").read_text()
place = os.environ.get("TRAINMASTER_OUTPUT_MODEL")
step = 0
print(f"{task.role} {task.index} trains", flush=True)
runtime.phase(text).__enter__()
while not (folder / "end").exists():
    if (folder / "fail").exists():
        print("this step goes wrong", flush=True)
        raise FloatingPointError((folder / "fail").read_text())
    if step < int((folder / "steps").read_text() or "0"):
        step += 1
        print(f"step {step}: loss {1 / step:.3f} {text}", flush=True)
        if place:
            Path(place).mkdir(exist_ok=True)
            (Path(place) / "model").write_text("x" * step)
    loss = float("nan") if (folder / "nan").exists() else 1 / (1 + step)
    runtime.progress(step / total, step=step, loss=loss, **{text: float(step)})
    time.sleep(0.02)
