"""Write the data of the model `points` below a directory: python points/data.py data

`train/` and `test/` have rows x, y, label; `new/` has points alone. The same each time.
"""

import csv
import random
import sys
from pathlib import Path


def write(folder):
    draw = random.Random(5)
    for name, count in (("train", 2000), ("test", 500), ("new", 100)):
        path = Path(folder) / name / "points.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["x", "y", "label"][: 2 if name == "new" else 3])
            for _ in range(count):
                x, y = draw.uniform(-1, 1), draw.uniform(-1, 1)
                rows.writerow([f"{x:.4f}", f"{y:.4f}", int(x * x + y * y < 0.6)][: 2 if name == "new" else 3])


if __name__ == "__main__":
    write(sys.argv[1])
