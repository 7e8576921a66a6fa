"""Make data of the shapes of TensorFlowOnSpark's examples: data.py FOLDER.

Those are mnist and oxford_iiit_pet as tensorflow_datasets keeps them, CIFAR-10's binary files, and untrained weights of MobileNetV2 in
Keras' cache, where `home` is the user's directory.
"""

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from digits import moved_digits, shuffled_digits

FOLDER = Path(sys.argv[1])
IMAGES, LABELS = shuffled_digits()
TEST, TRAIN = (IMAGES[:300], LABELS[:300]), (IMAGES[300:], LABELS[300:])
FEATURES = tfds.features


with tfds.core.registered.skip_registration():

    class Mnist(tfds.core.GeneratorBasedBuilder):
        name = "mnist"
        VERSION = tfds.core.Version("3.0.1")

        def _info(self) -> tfds.core.DatasetInfo:
            features = {"image": FEATURES.Image(shape=(28, 28, 1)), "label": FEATURES.ClassLabel(num_classes=10)}
            return tfds.core.DatasetInfo(
                builder=self, features=FEATURES.FeaturesDict(features), supervised_keys=("image", "label")
            )

        def _split_generators(self, _: object) -> dict[str, object]:
            return {"train": self._generate_examples(TRAIN, 60000), "test": self._generate_examples(TEST, 10000)}

        def _generate_examples(self, digits: tuple[np.ndarray, np.ndarray], count: int) -> Iterator[tuple[int, object]]:
            for key, (image, label) in enumerate(moved_digits(*digits, count, seed=count)):
                png = io.BytesIO()
                Image.fromarray(image).save(png, "png", compress_level=1)
                png.seek(0)
                yield key, {"image": png, "label": label}

    class Pets(tfds.core.GeneratorBasedBuilder):
        """Discs on a ground: inside, ground and border are the three classes of pixels."""

        name = "oxford_iiit_pet"
        VERSION = tfds.core.Version("3.2.0")

        def _info(self) -> tfds.core.DatasetInfo:
            features = {
                "image": FEATURES.Image(shape=(None, None, 3)), "label": FEATURES.ClassLabel(num_classes=37),
                "species": FEATURES.ClassLabel(names=["Cat", "Dog"]), "file_name": FEATURES.Text(),
                "segmentation_mask": FEATURES.Image(shape=(None, None, 1)),
            }  # fmt: skip
            return tfds.core.DatasetInfo(builder=self, features=FEATURES.FeaturesDict(features))

        def _split_generators(self, _: object) -> dict[str, object]:
            return {"train": self._generate_examples(128), "test": self._generate_examples(64)}

        def _generate_examples(self, count: int) -> Iterator[tuple[int, object]]:
            rng = np.random.default_rng(count)
            for key in range(count):
                height, width = rng.integers(120, 200, 2)
                y, x = np.mgrid[0:height, 0:width]
                centre = rng.uniform(0.3, 0.7, 2) * (height, width)
                radius = np.hypot(y - centre[0], x - centre[1]) / (min(height, width) * 0.3)
                mask = np.where(radius < 0.9, 1, np.where(radius < 1.1, 3, 2)).astype("uint8")
                colours = np.array([0, 220, 40, 120])[mask][..., None] + rng.normal(0, 20, (height, width, 3))
                image = np.clip(colours, 0, 255).astype("uint8")
                row = {
                    "image": image,
                    "label": 0,
                    "species": 0,
                    "file_name": str(key),
                    "segmentation_mask": mask[..., None],
                }
                yield key, row


def write_cifar(path: Path, digits: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    rng = np.random.default_rng(seed)
    with path.open("wb") as file:
        for image, label in moved_digits(*digits, 10000, seed):
            colours = np.zeros((3, 32, 32), "uint8")
            colours[:, 2:30, 2:30] = image * rng.uniform(0.5, 1, (3, 1, 1))
            file.write(bytes([label]) + colours.tobytes())


cifar, models = FOLDER / "cifar-10-batches-bin", FOLDER / "home/.keras/models"
cifar.mkdir(parents=True, exist_ok=True)
models.mkdir(parents=True, exist_ok=True)
for part in range(1, 6):
    write_cifar(cifar / f"data_batch_{part}.bin", TRAIN, part)
write_cifar(cifar / "test_batch.bin", TEST, 6)
tf.random.set_seed(0)
net = tf.keras.applications.MobileNetV2(input_shape=[128, 128, 3], include_top=False, weights=None)
net.save_weights(str(models / "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_128_no_top.h5"))
several_files = tfds.download.DownloadConfig(num_shards=10)  # of which a strategy gives each node its own
for kind in (Mnist, Pets):
    kind(data_dir=str(FOLDER / "tensorflow_datasets")).download_and_prepare(download_config=several_files)
