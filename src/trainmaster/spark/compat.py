"""Calls that differ between versions of TensorFlow, with TensorFlowOnSpark's names. TensorFlow is imported when it is called for."""

from __future__ import annotations

import tempfile
from inspect import signature
from typing import Any


def export_saved_model(model: Any, export_dir: str, is_chief: bool = False) -> None:
    """Export a Keras model as a SavedModel. All members of a strategy must call it; only the chief's files are kept."""
    if is_chief:
        _export(model, export_dir)
        return
    with tempfile.TemporaryDirectory() as scratch:
        _export(model, scratch)


def disable_auto_shard(options: Any) -> None:
    """Set `tf.data.Options` so that a strategy does not divide the data: each program's feed is its own already."""
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Say whether TensorFlow has a GPU."""
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU")) > 0


def _export(model: Any, export_dir: str) -> None:
    """Keras 2's `save` writes a SavedModel, whose signature has the layers' names. Keras 3 has `export`. Other modules have neither."""
    import tensorflow as tf

    if "save_format" in signature(getattr(model, "save", _export)).parameters:
        model.save(export_dir, save_format="tf")
    elif hasattr(model, "export"):
        model.export(export_dir)
    else:
        tf.saved_model.save(model, export_dir)
