"""Where an engine's files are."""

import re
from pathlib import Path

import pytest

from aliquot.standalone import paths
from aliquot.standalone.paths import is_trusted, runtime_dir, way_out


def test_all_logins_of_an_account_use_one_engine(monkeypatch: pytest.MonkeyPatch):
    """A login with XDG_RUNTIME_DIR, as by ssh, and one without, as by su or cron, have one runtime directory."""
    monkeypatch.delenv("ALIQUOT_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 1001)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1001")
    by_ssh = runtime_dir()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert Path("/tmp/aliquot-1001") == by_ssh == runtime_dir()


ANN, NOBODY = 1001, 65534
WHOLE, OWN, ROOTLESS = "0 0 4294967295", "1001 1001 1", "0 1001 1\n1 100000 65536"


@pytest.mark.parametrize(
    ("uid_map", "self", "uid", "trusted"),
    [
        (WHOLE, ANN, ANN, True),
        (WHOLE, ANN, 0, True),
        (WHOLE, ANN, 1002, False),
        (WHOLE, ANN, NOBODY, False),
        (WHOLE, NOBODY, NOBODY, True),
        (OWN, ANN, ANN, True),
        (OWN, ANN, NOBODY, False),
        ("65534 65534 1", NOBODY, NOBODY, False),
        (ROOTLESS, 0, 0, True),
        (ROOTLESS, 0, NOBODY, False),
    ],
)
def test_no_other_account_is_taken_for_root_or_oneself(
    uid_map: str, self: int, uid: int, trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a folder that is not /run/aliquot only oneself and a root that is mapped count, in whatever namespace."""
    for name, text in (("_UID_MAP", uid_map), ("_OVERFLOW", str(NOBODY))):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(paths, name, tmp_path / name)
    monkeypatch.setattr("os.geteuid", lambda: self)

    assert trusted is is_trusted(uid, tmp_path)


@pytest.mark.parametrize(
    ("uid_map", "self", "note"),
    [
        (WHOLE, 0, ""),
        (WHOLE, ANN, ""),
        (OWN, ANN, ""),
        ("0 0 1", 0, ""),
        ("0 1001 1", 0, "where root is account 1001 outside: .* ALIQUOT_RUNTIME_DIR=/tmp/aliquot-1001"),
        (ROOTLESS, 0, "where root is account 1001 outside: .* ALIQUOT_RUNTIME_DIR=/tmp/aliquot-1001"),
        ("", NOBODY, "without a number for your account: run aliquot outside of it"),
    ],
)
def test_who_has_another_number_outside_learns_where_its_engines_are(
    uid_map: str, self: int, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Only in a user namespace that makes it root, or gives it no number, and where no variable names the place."""
    (tmp_path / "uid_map").write_text(uid_map)
    monkeypatch.setattr(paths, "_UID_MAP", tmp_path / "uid_map")
    monkeypatch.setattr("os.geteuid", lambda: self)
    monkeypatch.delenv("ALIQUOT_RUNTIME_DIR", raising=False)
    said = way_out("usual")
    monkeypatch.setenv("ALIQUOT_RUNTIME_DIR", "/somewhere")

    assert re.fullmatch(f"this is a user namespace,? {note}" if note else "usual", said)
    assert "usual" == way_out("usual")
