"""`trainmaster.spark.TFNode` itself."""

import sys

from trainmaster.spark import TFNode

sys.modules[__name__] = TFNode
