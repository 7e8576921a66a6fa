"""The networks of this host: its addresses, its RDMA devices, and the way that a job's collectives take."""
