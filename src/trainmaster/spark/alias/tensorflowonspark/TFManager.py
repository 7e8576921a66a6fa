"""`trainmaster.spark.nodes.TFManager` itself."""

import sys

from trainmaster.spark.nodes import TFManager

sys.modules[__name__] = TFManager
