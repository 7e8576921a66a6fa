"""Stop a program that trains on a stream, in the form of TensorFlowOnSpark's utils/stop_streaming.py.

    python examples/digits-tensorflowonspark/stop_streaming.py HOST PORT

Run it as the driver's user on the driver's machine. From elsewhere the driver and this program need the same TFOS_SERVER_KEY.
"""

import sys

from trainmaster.spark import reservation

client = reservation.Client((sys.argv[1], int(sys.argv[2])))
client.request_stop()
client.close()
