"""Jobs on Kubernetes: the client side, the master side, and the pods made of a job."""
