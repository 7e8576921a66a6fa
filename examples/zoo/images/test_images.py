"""The models learn: pytest images/test_images.py, in the directory of the zoo."""

import pytest
from learning import evaluated

DATA = "images"
# Model -> epochs, batch, metric, the least that it must be on the data that are held out.
MODELS = {
    "images.functional.custom_model": (6, 64, "accuracy", 0.9),
    "images.subclass.CustomModel": (6, 64, "accuracy", 0.9),
    "images.resnet.custom_model": (7, 64, "accuracy", 0.8),
    "images.mobilenet_v2.custom_model": (8, 64, "accuracy", 0.6),
    "images.resnet50.custom_model": (3, 64, "accuracy", 0.6),
}


@pytest.mark.parametrize("model", MODELS)
def test_model_reaches_its_figure(model, tmp_path):
    epochs, batch, metric, least = MODELS[model]
    assert evaluated(model, DATA, epochs, batch, tmp_path)[metric] >= least
