"""`tm predict`: a job out of ElasticDL's flags."""

from __future__ import annotations

from trainmaster.cli.models import model_command

command = model_command("predict")
