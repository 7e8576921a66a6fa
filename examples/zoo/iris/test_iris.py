"""The models learn: pytest iris/test_iris.py, in the directory of the zoo."""

import pytest
from learning import evaluated

DATA = "iris"
# Model -> epochs, batch, metric, the least that it must be on the data that are held out.
MODELS = {
    "iris.dnn.custom_model": (30, 16, "accuracy", 0.93),
}


@pytest.mark.parametrize("model", MODELS)
def test_model_reaches_its_figure(model, tmp_path):
    epochs, batch, metric, least = MODELS[model]
    assert evaluated(model, DATA, epochs, batch, tmp_path)[metric] >= least
