"""Write scikit-learn's handwritten digits as CSV files, once: data/train/part-NN.csv and data/test/part-NN.csv.

A line is a digit: its label, then the 8 x 8 pixels, row by row, 0 to 16. There are 1797; one in five is held out, of
each label alike. The files have unequal numbers of lines, as files in the world have.
"""

import sys
from pathlib import Path

PARTS = {"train": (70, 230, 120, 300, 90, 260, 190, None), "test": (100, None)}  # lines of each file; None: the rest


def write(directory: Path) -> None:
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    rows = np.column_stack([digits.target, digits.data]).astype(int)
    train, test = train_test_split(rows, test_size=0.2, random_state=0, stratify=digits.target)
    for name, kept in (("train", train), ("test", test)):
        place = directory / name
        place.mkdir(parents=True, exist_ok=True)
        start = 0
        for number, count in enumerate(PARTS[name]):
            end = len(kept) if count is None else start + count
            np.savetxt(place / f"part-{number:02}.csv", kept[start:end], fmt="%d", delimiter=",")
            start = end
        print(f"{place}: {len(kept)} digits in {len(PARTS[name])} files")


if __name__ == "__main__":
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "data"
    if not (directory / "test" / "part-01.csv").exists():  # the last file that is written
        write(directory)
