"""Add up the numbers in worker:0, save the sum, and fail once, so that all begin again from a checkpoint."""

import sys
from pathlib import Path

from trainmaster import runtime

task = runtime.task()
found = runtime.checkpoint.load()
step, total = (found.step, found["sum"]) if found else (0, 0)
print(f"begins after step {step} with the sum {total}", flush=True)
for record in runtime.shards("numbers") if task.index == 0 else ():
    step, total = step + 1, total + int(record)
    runtime.progress(step=step, sum=total)
runtime.checkpoint.save(step, {"sum": total})
runtime.checkpoint.wait()
if task.index == 0 and not found:
    sys.exit("fails once")
Path("model").mkdir(exist_ok=True)
Path("model/sum").write_text(f"{total}\n")
