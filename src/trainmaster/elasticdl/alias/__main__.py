"""Print the directory to put on the path."""

from pathlib import Path

print(Path(__file__).parent)
