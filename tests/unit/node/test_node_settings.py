"""Settings: the same names on the command line, in a file and in the printed configuration."""

import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from aliquot.cli.programs import node, scheduler
from aliquot.kube.settings import BadSettings, print_settings
from aliquot.node.settings import NodeSettings, node_settings

DOCS = Path(__file__).resolve().parents[3] / "docs" / "nodes.md"
NAMES = [field.encode_name for field in msgspec.structs.fields(NodeSettings)]


def test_every_setting_is_a_flag_and_every_flag_a_setting():
    """Command line and file have the same names."""
    flags = {option.name.replace("_", "-") for option in node.params} - {"config", "print-config"}

    assert set(NAMES) == flags


def test_every_flag_on_the_page_about_the_agent_exists():
    """The agent's own, or the one of the scheduler that has to say the same."""
    named = set(re.findall(r"--[a-z][a-z-]+", DOCS.read_text()))
    known = {flag for option in node.params for flag in (*option.opts, *option.secondary_opts)}

    assert {"--config", "--node-labels"} <= named
    assert {"--namespace"} == named - known
    assert "--namespace" in {flag for option in scheduler.params for flag in option.opts}


def test_printed_settings_are_a_file_that_gives_the_same(tmp_path: Path):
    """What --print-config prints can be given to --config."""
    first = node_settings(None, {"emulate": "v100x2", "ids_per_gpu": 50, "node_labels": False})
    file = tmp_path / "node.yaml"
    file.write_text(print_settings(first))

    assert first == node_settings(file, {})
    printed = CliRunner().invoke(node, ["--config", str(file), "--print-config"])
    assert (0, file.read_text()) == (printed.exit_code, printed.output)


def test_a_flag_comes_before_the_file(tmp_path: Path):
    """A flag that is given counts, one that is not leaves the file's word."""
    file = tmp_path / "node.yaml"
    file.write_text("node-name: from-file\nhealth-period-s: 7\n")

    made = node_settings(file, {"node_name": "from-flag", "health_period_s": None})

    assert ("from-flag", 7.0) == (made.name, made.health_period_s)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no-such: 1", "no-such"),
        ("ids-per-gpu: many", "ids-per-gpu"),
        ("ids-per-gpu: 1001", "ids-per-gpu: 1001 is out of range; write at most 1000"),
        ("health-period-s: 0", "health-period-s 0 is not a finite number above 0"),
        ("health-period-s: .nan", "health-period-s nan is not a finite number above 0"),
        ("pre-start-wait-s: 30", "kubelet waits for 30"),
        ("log-format: xml", 'log-format: "xml" is not known; write json or text'),
        ("otlp-endpoint: collector", '"collector" is not the URL of an OTLP/HTTP receiver; write http://HOST:4318'),
        ("display-port: 70000", "display-port: 70000 is out of range; write at most 65535"),
        ("aliyun-unit: GB", 'aliyun-unit: "GB" is not known; write GiB or MiB'),
        ("turns: fixed", 'turns: "fixed" is not known; write fluid, kubeshare or gemini'),
        ("metric-aliases: hami,dcgm", "'dcgm' is not known; take gpu-manager, hami"),
        ("labels: team", "labels 'team' is not a label; write KEY=VALUE"),
        ("labels: a=b,node.kubernetes.io/x=y", "labels of node.kubernetes.io are not yours"),
        ("extra-devices: /etc/passwd", "extra-devices '/etc/passwd' is not a device; write paths below /dev"),
        ("[1]", "not a mapping"),
        ("a: [", "--config"),
    ],
)
def test_what_can_not_be_is_refused_in_a_sentence(tmp_path: Path, text: str, says: str):
    """A wrong file is told with the setting's name and what is allowed."""
    file = tmp_path / "node.yaml"
    file.write_text(text)

    with pytest.raises(BadSettings, match=says):
        node_settings(file, {})
