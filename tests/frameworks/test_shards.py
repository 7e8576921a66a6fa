"""Shards into PyTorch and TensorFlow: each record once, whoever reads ahead. Alone, and with leases behind it in the conformance tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NUMBERS = range(1000)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for part in range(4):
        lines = "".join(f"{number}\n" for number in NUMBERS[part * 250 : (part + 1) * 250])
        (tmp_path / f"part-{part}.txt").write_text(lines)
    return tmp_path


def printed(code: str, data: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code, str(data)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_pytorch(data: Path, workers: int) -> None:
    code = f"""
import sys
from trainmaster.runtime import torch_data
for shuffle in (0, 300):
    loader = torch_data.loader(
        "train", 32, transform=int, workers={workers}, shuffle=shuffle, seed=1, default=sys.argv[1], epochs=2
    )
    batches = list(loader)
    assert all(batch.shape[0] <= 32 for batch in batches)
    numbers = [int(number) for batch in batches for number in batch]
    assert sorted(numbers) == sorted([*range(1000)] * 2)
    print(numbers == [*range(1000)] * 2, len(batches))
"""
    assert printed(code, data) == ["True 63", "False 63"]


def test_a_dataset_for_a_data_loader_of_the_programs_own(data: Path) -> None:
    code = """
import sys
from torch.utils.data import DataLoader
from trainmaster.runtime import torch_data
loader = DataLoader(torch_data.Records("train", int, default=sys.argv[1]), batch_size=100)
print([int(batch.sum()) for batch in loader] == [sum(range(n, n + 100)) for n in range(0, 1000, 100)])
"""
    assert printed(code, data) == ["True"]


def test_a_dataset_of_tensorflow(data: Path) -> None:
    code = """
import sys
import tensorflow as tf
from trainmaster.runtime import tf_data
print(sorted(int(number) for batch in tf_data.dataset("train", 32, default=sys.argv[1]) for number in batch.numpy())
      == [*range(1000)])
def parse(records):
    return [[float(record)] for record in records], [float(record) * 2 for record in records]
signature = (tf.TensorSpec([None, 1]), tf.TensorSpec([None]))
dataset = tf_data.dataset("train", 50, parse, signature, shuffle=400, seed=2, default=sys.argv[1])
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
seen = []
model.fit(dataset.map(lambda x, y: (x / 1000, y / 1000)), verbose=0)
print(sum(len(x) for x, y in dataset))
try:
    tf_data.dataset("train", 1, parse)
except ValueError as error:
    print(error)
"""
    assert printed(code, data) == ["True", "1000", "the signature of what parse returns is due: tf.TensorSpecs"]
