"""`trainmaster.spark.pipeline` itself."""

import sys

from trainmaster.spark import pipeline

sys.modules[__name__] = pipeline
