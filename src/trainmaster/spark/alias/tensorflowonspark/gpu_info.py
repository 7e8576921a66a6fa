"""`trainmaster.spark.gpu_info` itself."""

import sys

from trainmaster.spark import gpu_info

sys.modules[__name__] = gpu_info
