"""The agent's connections: its channel to the master, its socket for programs, and the master's successor."""
