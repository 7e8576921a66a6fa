"""`trainmaster.elasticdl.torch_dataset` itself."""

import sys

from trainmaster.elasticdl import torch_dataset

sys.modules[__name__] = torch_dataset
