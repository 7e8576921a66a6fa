"""`trainmaster.elasticdl.readers` itself."""

import sys

from trainmaster.elasticdl import readers

sys.modules[__name__] = readers
