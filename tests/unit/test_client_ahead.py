"""What another process has ready for a submission."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cryptography import x509

from trainmaster.client import ahead
from trainmaster.engines import runtime_archive


@pytest.mark.parametrize("dies", [False, True])
def test_all_is_there_though_the_process_dies(tmp_path: Path, dies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = runtime_archive.archive(tmp_path)
    if dies:
        monkeypatch.setattr(ahead, "_certificate", lambda: signal.pause())
    ahead.begin()
    assert ahead._coming is not None
    pid = ahead._coming[0]
    if dies:
        os.kill(pid, signal.SIGKILL)
        monkeypatch.undo()
    certificate, key = ahead.certified()
    assert x509.load_pem_x509_certificate(certificate.encode()).subject.rfc4514_string() == "CN=trainmaster"
    assert "PRIVATE KEY" in key
    if not dies:
        monkeypatch.setattr(runtime_archive, "files", lambda: pytest.fail("the other process has looked at them"))
    assert ahead.runtime(tmp_path) == made
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
