"""`trainmaster.spark.TFCluster` itself."""

import sys

from trainmaster.spark import TFCluster

sys.modules[__name__] = TFCluster
