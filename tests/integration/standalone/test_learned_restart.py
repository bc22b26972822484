"""What placement learned on one machine: there again after the engine has ended, however it was started."""

import json
from pathlib import Path

from .stage import Aliquot, end, engine_of, serving


def arrivals(file: Path) -> int:
    """Arrivals that the file knows of."""
    return len(json.loads(file.read_text().splitlines()[1])["recent"])


def test_engines_go_on_from_each_other(aliquot_cli: Aliquot, tmp_path: Path):
    """The engine behind `aliquot run` leaves what it saw to the next one, and to `aliquot up` beside it."""
    file = aliquot_cli.runtime / "state" / "learned-aliquot-emulated.json"
    assert 0 == aliquot_cli.run("--gpu-request", "0.3", "--", "true").returncode
    aliquot_cli.wait_gone()
    first = arrivals(file)
    with engine_of(aliquot_cli, "v100", "--no-web"):
        aliquot_cli("run", "--gpu-request", "0.5", "--", "true")
    second = arrivals(file)
    with engine_of(aliquot_cli, "v100", "--no-web", "--state-dir", str(tmp_path)):
        pass

    assert (1, 2) == (first, second)
    assert [] == list(tmp_path.iterdir())


def test_a_spoilt_file_does_not_stop_the_engine(aliquot_cli: Aliquot, tmp_path: Path):
    """`aliquot up` says in one line that it cannot use what it finds, serves, and mends it at its end."""
    file = tmp_path / "learned-aliquot-emulated.json"
    file.write_text('{"version": 1, "policy": "aliquot", "sha256": ""}\n{}\n')
    with serving(aliquot_cli, "v100", "--no-web", "--state-dir", str(tmp_path)) as engine:
        ran = aliquot_cli("run", "--gpu-request", "0.5", "--", "true")
        _, told = end(engine.process)

    assert (0, 0) == (ran.returncode, engine.process.returncode)
    assert f"{file} cannot be used: it does not have the checksum" in told
    assert 1 == len(told.splitlines())
    assert 1 == arrivals(file)
