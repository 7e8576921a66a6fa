"""`trainmaster.elasticdl.torch_optimizer` itself."""

import sys

from trainmaster.elasticdl import torch_optimizer

sys.modules[__name__] = torch_optimizer
