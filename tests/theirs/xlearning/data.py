"""Bring what XLearning's examples read to HDFS: data.py SOURCE; or remove what they have written: data.py."""

import gzip
import io
import struct
import sys
import tarfile
from pathlib import Path

import numpy as np

from trainmaster.data.store.stores import store_for

PROGRAMS = Path(__file__).parent / "programs"
OUTPUTS = (
    "tensorflow_model", "estimatorDemoModel", "caffe_output", "lightGBM_output", "xgboost_dist_output", "lightLDA_output",
    "mxnet_single_output", "mxnet_visualDL_log",
)  # fmt: skip


def archive(name: str) -> bytes:
    """Pack a command of ours under the name that an example calls."""
    out, content = io.BytesIO(), (PROGRAMS / f"{name}_command.py").read_bytes()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), 0o755
        tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def put_rows() -> None:
    """Bring rows for more than 30 s: so long waits a worker that finds no variables yet, and then for a chief, even one that has ended."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=100)
    for number in range(4):
        rows = rng.normal(size=(30000, 100))
        lines = [f"{int(row @ weights > 0)} {','.join(f'{x:.4f}' for x in row)}\n" for row in rows]
        store_for("hdfs:///tmp/data/tensorflow").put(f"part-{number}", "".join(lines).encode())


def put_digits(folder: Path) -> None:
    """Use the test images as training images too: the training images are not among the sources."""
    images, labels = (
        gzip.decompress((folder / f"t10k-{kind}-ubyte.gz").read_bytes()) for kind in ("images-idx3", "labels-idx1")
    )
    store = store_for("hdfs:///tmp/data/mxnet")
    heads = (struct.pack(">IIII", 2051, 10000, 28, 28), struct.pack(">II", 2049, 10000))
    store.put("train-images-idx3-ubyte.gz", gzip.compress(heads[0] + images[16:]))
    store.put("train-labels-idx1-ubyte.gz", gzip.compress(heads[1] + labels[8:]))


def main() -> None:
    if len(sys.argv) == 1:
        for output in OUTPUTS:
            store_for("hdfs:///tmp").remove(output)
        return
    data, store = Path(sys.argv[1], "data"), store_for("hdfs:///tmp/data")
    put_rows()
    for path in sorted(data.rglob("*")):
        if path.is_file():
            store.put(str(path.relative_to(data)), path.read_bytes())
    if (data / "mxnet").is_dir():
        put_digits(data / "mxnet")
    store.put("distxgboost/xgboost.tgz", archive("xgboost"))
    store.put("distLightGBM/LightGBM.tgz", archive("lightgbm"))


main()
