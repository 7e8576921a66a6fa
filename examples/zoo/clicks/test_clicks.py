"""The models learn: pytest clicks/test_clicks.py, in the directory of the zoo."""

import pytest
from learning import evaluated

DATA = "clicks"
# Model -> epochs, batch, metric, the least that it must be on the data that are held out.
MODELS = {
    "clicks.fm.custom_model": (6, 128, "auc", 0.81),
    "clicks.nfm.custom_model": (4, 128, "auc", 0.79),
    "clicks.deepfm.custom_model": (4, 128, "auc", 0.86),
    "clicks.dcn.custom_model": (4, 128, "auc", 0.88),
    "clicks.xdeepfm.custom_model": (4, 128, "auc", 0.88),
}


@pytest.mark.parametrize("model", MODELS)
def test_model_reaches_its_figure(model, tmp_path):
    epochs, batch, metric, least = MODELS[model]
    assert evaluated(model, DATA, epochs, batch, tmp_path)[metric] >= least
