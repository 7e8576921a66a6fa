"""`trainmaster.elasticdl.torch_controller` itself."""

import sys

from trainmaster.elasticdl import torch_controller

sys.modules[__name__] = torch_controller
