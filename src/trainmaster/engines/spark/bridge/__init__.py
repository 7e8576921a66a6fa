"""The bridge: threads of a driver that carry out the asks of masters, and pass Spark's events on to them."""
