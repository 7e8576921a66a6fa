"""The client of a master that programs hand to a service. Services find the job by themselves, so there is nothing in it."""


def build_master_client() -> None:
    """Return nothing: services and controllers take it, and need none."""
