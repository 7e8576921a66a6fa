"""`trainmaster.spark.reservation` itself."""

import sys

from trainmaster.spark import reservation

sys.modules[__name__] = reservation
