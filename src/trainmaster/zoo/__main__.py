"""The program `python -m trainmaster.zoo train|evaluate|predict`: see `--help`."""

from __future__ import annotations

import sys

from .running import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
