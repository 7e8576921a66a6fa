"""`trainmaster.zoo.callbacks` itself."""

import sys

from trainmaster.zoo import callbacks

sys.modules[__name__] = callbacks
