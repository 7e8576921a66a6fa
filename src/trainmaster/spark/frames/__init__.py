"""DataFrames: how their rows come to the feeders."""
