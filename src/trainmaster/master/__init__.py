"""The master: the shell around the core. It owns the event log, the agents' connections and the engine of one job."""
