"""`trainmaster.spark.compat` itself."""

import sys

from trainmaster.spark import compat

sys.modules[__name__] = compat
