"""The models learn: pytest heart/test_heart.py, in the directory of the zoo."""

import pytest
from learning import evaluated

DATA = "heart"
# Model -> epochs, batch, metric, the least that it must be on the data that are held out.
MODELS = {
    "heart.dnn.custom_model": (6, 64, "auc", 0.94),
}


@pytest.mark.parametrize("model", MODELS)
def test_model_reaches_its_figure(model, tmp_path):
    epochs, batch, metric, least = MODELS[model]
    assert evaluated(model, DATA, epochs, batch, tmp_path)[metric] >= least
