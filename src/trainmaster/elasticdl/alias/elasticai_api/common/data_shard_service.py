"""`trainmaster.elasticdl.data_shards` itself."""

import sys

from trainmaster.elasticdl import data_shards

sys.modules[__name__] = data_shards
