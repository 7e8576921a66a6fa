"""Engines grant containers and take them back; nothing else. `contract` says what each must do."""
