"""The models learn: pytest digits/test_digits.py, in the directory of the zoo."""

import pytest
from learning import evaluated

DATA = "digits"
# Model -> epochs, batch, metric, the least that it must be on the data that are held out.
MODELS = {
    "digits.functional.custom_model": (3, 64, "accuracy", 0.95),
    "digits.subclass.CustomModel": (3, 64, "accuracy", 0.95),
    "digits.pytorch.custom_model": (3, 64, "accuracy", 0.95),
}


@pytest.mark.parametrize("model", MODELS)
def test_model_reaches_its_figure(model, tmp_path):
    epochs, batch, metric, least = MODELS[model]
    assert evaluated(model, DATA, epochs, batch, tmp_path)[metric] >= least
