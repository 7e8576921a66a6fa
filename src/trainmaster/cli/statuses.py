"""The exit statuses of `tm`, except those that a job's end or a signal gives."""

from __future__ import annotations

BAD_INPUT = 2
FAULT = 3  # the engine failed, or a fault of ours
INTERRUPTED = 130  # 128 and SIGINT, as shells count
