"""`trainmaster.spark.dfutil` itself."""

import sys

from trainmaster.spark import dfutil

sys.modules[__name__] = dfutil
