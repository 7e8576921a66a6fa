"""The models learn: pytest census/test_census.py, in the directory of the zoo."""

import pytest
from learning import evaluated

DATA = "census"
# Model -> epochs, batch, metric, the least that it must be on the data that are held out.
MODELS = {
    "census.dnn.custom_model": (5, 64, "auc", 0.93),
    "census.wide_deep.custom_model": (5, 64, "auc", 0.93),
}


@pytest.mark.parametrize("model", MODELS)
def test_model_reaches_its_figure(model, tmp_path):
    epochs, batch, metric, least = MODELS[model]
    assert evaluated(model, DATA, epochs, batch, tmp_path)[metric] >= least
