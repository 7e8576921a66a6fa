"""The network under connections of a job: certificates that both ends know, and strangers."""
