"""`trainmaster.spark.nodes.TFSparkNode` itself."""

import sys

from trainmaster.spark.nodes import TFSparkNode

sys.modules[__name__] = TFSparkNode
