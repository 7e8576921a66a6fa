"""The models learn: pytest gpt/test_gpt.py, in the directory of the zoo."""

import pytest
from learning import evaluated

DATA = "sums"
# Model -> epochs, batch, metric, the least that it must be on the data that are held out.
MODELS = {
    "gpt.sums.custom_model": (12, 256, "right", 0.9),
}


@pytest.mark.parametrize("model", MODELS)
def test_model_reaches_its_figure(model, tmp_path):
    epochs, batch, metric, least = MODELS[model]
    assert evaluated(model, DATA, epochs, batch, tmp_path)[metric] >= least
