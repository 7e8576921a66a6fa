"""`trainmaster.spark.TFParallel` itself."""

import sys

from trainmaster.spark import TFParallel

sys.modules[__name__] = TFParallel
