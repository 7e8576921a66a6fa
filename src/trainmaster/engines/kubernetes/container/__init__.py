"""The beginning of a container in a pod."""
