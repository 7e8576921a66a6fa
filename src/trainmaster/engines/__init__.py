"""Engines grant containers and take them back; nothing else. `contract` says what each of them must do."""
