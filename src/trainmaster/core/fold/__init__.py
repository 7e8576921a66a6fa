"""Events into state: `changes.fold`."""
