"""Make images of the sizes that programs expect out of scikit-learn's digits of 8x8."""

from collections.abc import Iterator

import numpy as np
from sklearn.datasets import load_digits


def shuffled_digits(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return all 1797 digits as images of 28x28 with values from 0 to 255, and their labels."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images = np.stack([np.pad(np.kron(image, np.ones((3, 3))), 2) for image in digits.images[order]])
    return (images * 15.9).astype("float32"), digits.target[order]


def moved_digits(images: np.ndarray, labels: np.ndarray, count: int, seed: int) -> Iterator[tuple[np.ndarray, int]]:
    """Give `count` images of 28x28 bytes, each moved by up to 2 pixels and with noise."""
    rng = np.random.default_rng(seed)
    for index in rng.integers(0, len(labels), count):
        image = np.roll(images[index], rng.integers(-2, 3, 2), (0, 1))
        noise = rng.normal(0, 12, image.shape) * (image > 0)
        yield np.clip(image + noise, 0, 255).astype("uint8"), int(labels[index])
