"""The commands of a job that this machine runs: refused at submit where it is known that they cannot be executed.

Three forms can be checked: an absolute path, a name that is looked up in the programs' PATH, and a relative path in the submitter's own
directory. Any other command may come to be before the program starts: by a `prepare` command, by a role that runs before, in a directory
that is still to be filled. A text for the shell is the shell's affair.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from trainmaster.core.errors import BadInput
from trainmaster.core.spec.job import LONGEST_WORD, SHARED, Job, Role


def check_commands(job: Job, base: Path, environ: Mapping[str, str]) -> None:
    """Raise BadInput for a command that does not exist or may not be executed. `environ`: of the programs, before their role's `env`."""
    for role in job.roles.values():
        _check_length(role)
        if isinstance(role.command, str) or role.prepare or role.after or job.archives or job.cache:
            continue
        name = role.command[0]
        if "/" not in name:
            _check_name(role, name, environ)
        elif os.path.isabs(name) or role.workdir == SHARED:
            _check_path(role, name, os.path.join(base, name))


def _check_length(role: Role) -> None:
    words = [role.command] if isinstance(role.command, str) else role.command
    longest = max(len(os.fsencode(word)) for word in words)
    if longest >= LONGEST_WORD:
        raise BadInput(
            f"a word of the command has {longest} bytes, and the kernel takes fewer than {LONGEST_WORD}",
            place=f"roles.{role.name}.command",
            mend="give what is long in a file",
            anchor="no-command",
        )


def _check_name(role: Role, name: str, environ: Mapping[str, str]) -> None:
    path = role.env.get("PATH") or environ.get("PATH", os.defpath)
    if any(not os.path.isabs(folder) for folder in path.split(":")) or shutil.which(name, path=path):
        return
    mend = f"it is looked for in PATH: {path}"
    if name == "python" and shutil.which("python3", path=path):
        mend = "there is python3: write that, or activate the environment that has python"
    raise _refusal(role, name, f"the command {name} was not found", mend)


def _check_path(role: Role, name: str, path: str) -> None:
    if not os.path.lexists(path):
        raise _refusal(role, name, f"the command {name} was not found", f"it is looked for at {path}")
    if not os.path.exists(path):
        raise _refusal(
            role, name, f"the command {name} is a symbolic link to what is not there", "see where it leads: ls -l"
        )
    if os.path.isdir(path):
        raise _refusal(role, name, f"the command {name} is a directory", "name a program in it")
    if not os.access(path, os.X_OK):
        raise _refusal(role, name, f"the command {name} may not be executed", "chmod +x it, or name its interpreter")


def _refusal(role: Role, name: str, message: str, mend: str) -> BadInput:
    if len(role.command) == 1 and len(name.split()) > 1:
        mend = f"it is one word, and no shell looks at it: write sh -c {shlex.quote(name)}, or each word by itself"
    return BadInput(message, place=f"roles.{role.name}.command: {name}", mend=mend, anchor="no-command")
