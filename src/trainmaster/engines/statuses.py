"""Exit statuses by which a container that is ours says why it ended, in words that every engine hands on."""

from __future__ import annotations

NO_PYTHON = 76  # none was found that is new enough
NO_DEVICES = 77  # of the devices that were counted some are taken
OUT_OF_REACH = 78  # no master was reached for as long as an agent may go on without, or waits for its first one
# Its engine has ended it (128 and SIGTERM). With 0 a kubelet would forget why it evicted the pod.
TERMINATED = 143
