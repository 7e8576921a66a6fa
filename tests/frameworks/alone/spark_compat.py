"""TensorFlowOnSpark's `compat` with the TensorFlow of today."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainmaster.spark import compat

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf


def keras_model() -> object:
    return tf.keras.Sequential(
        [tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)]
    )


class Doubled(tf.Module):  # type: ignore[misc]
    @tf.function(input_signature=[tf.TensorSpec([None, 2])])  # type: ignore[untyped-decorator]
    def __call__(self, x: object) -> object:
        return {"y": 2 * x}  # type: ignore[operator]


def test_the_chief_s_model_is_exported_and_no_other_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = keras_model()
    compat.export_saved_model(model, str(tmp_path / "export"), is_chief=True)
    compat.export_saved_model(model, str(tmp_path / "other"))
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    serve = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    (output,) = serve(tf.constant([[1.0, 2.0]])).values()
    assert output.numpy().tolist() == [[3.0]]


def test_a_module_is_exported_too(tmp_path: Path) -> None:
    compat.export_saved_model(Doubled(), str(tmp_path), is_chief=True)
    assert tf.saved_model.load(str(tmp_path))(tf.constant([[1.0, 2.0]]))["y"].numpy().tolist() == [[2.0, 4.0]]


def test_auto_shard_is_off() -> None:
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert compat.is_gpu_available() == bool(tf.config.list_physical_devices("GPU"))
