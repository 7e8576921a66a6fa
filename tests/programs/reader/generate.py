"""Print bytes that a reader compares with those of the file `expected`."""

print("12\n34")
