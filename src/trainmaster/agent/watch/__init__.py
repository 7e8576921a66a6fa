"""Programs while they run: samples, progress, stalls, memory."""
