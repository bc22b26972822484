"""Where an engine's files are."""

from pathlib import Path

import pytest

from aliquot.standalone.paths import runtime_dir


def test_all_logins_of_an_account_use_one_engine(monkeypatch: pytest.MonkeyPatch):
    """A login with XDG_RUNTIME_DIR, as by ssh, and one without, as by su or cron, have one runtime directory."""
    monkeypatch.delenv("ALIQUOT_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 1001)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1001")
    by_ssh = runtime_dir()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert Path("/tmp/aliquot-1001") == by_ssh == runtime_dir()
