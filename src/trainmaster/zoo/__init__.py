"""Models that are described in one file each: finding and checking such a file, and training, evaluating and predicting with it.

    python -m trainmaster.zoo train --model_zoo zoo --model_def iris.custom_model --training_data iris.csv --output model

This package runs in users' programs. It needs the standard library and NumPy only, and the framework that the model uses:
`data.tensorflow_feed`, `models.keras_model` and `models.torch_model` import theirs, and are imported when the model is known. A fault that
the user can mend is a `BadModel`.

A model file finds `Mode` here, and ElasticDL's callbacks in `callbacks`.
"""

from __future__ import annotations

from .modes import Metadata as Metadata
from .modes import Mode as Mode

__all__ = ["Metadata", "Mode"]
