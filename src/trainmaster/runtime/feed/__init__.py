"""The feed: batches of columns in shared memory, from feeders of this host to one program, without a copy for the reader.

The owner, an agent (`trainmaster.data.feed`), holds the memory, and says over a Unix socket who may use which part of it. A *feeder* asks
for room for a batch, writes the batch once, and reports it as written. The *reader* learns where the batch lies, and gives the memory back
when nothing refers to it any more. Both need the standard library alone; NumPy and pyarrow are used where the program has them.
"""
