"""Do something as another user of this machine, one who has nothing of ours."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from parts import need_root

_NOBODY = 65534


def as_another_user(act: Callable[[], Any]) -> Any:
    """Call `act` in a process of another user; returns what it returned, as JSON has it. Ends a test that is not root's as not run."""
    need_root()
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            with open(writing, "w") as file:
                json.dump(act(), file)
            status = 0
        except BaseException:  # noqa: BLE001  the child ends here, whatever it is
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading) as file:
        answer = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(answer)
