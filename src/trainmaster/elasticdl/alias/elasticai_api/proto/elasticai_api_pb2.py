"""The kinds of tasks, as numbers."""

from trainmaster.elasticdl.data_shards import EVALUATION as EVALUATION
from trainmaster.elasticdl.data_shards import PREDICTION as PREDICTION
from trainmaster.elasticdl.data_shards import TRAINING as TRAINING
