"""What the chart's templates read, and what its values say."""

import re
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[3] / "deploy" / "chart"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def default_of(path: str) -> object:
    """The default of a value, or `KeyError` as itself where there is none."""
    value: Any = VALUES
    for name in path.split("."):
        if not isinstance(value, dict) or name not in value:
            return KeyError
        value = value[name]
    return value


def test_every_value_that_a_template_reads_has_a_default():
    """A template reads no value that values.yaml does not have, for its lines would be left out."""
    read = {
        path
        for template in sorted((CHART / "templates").iterdir())
        for path in re.findall(r"\.Values\.([A-Za-z0-9]+(?:\.[A-Za-z0-9]+)*)", template.read_text())
    }

    assert len(read) > 40
    assert [] == sorted(path for path in read if default_of(path) is KeyError)


def test_the_agent_is_given_the_driver_by_nvidias_runtime():
    """By default the agent runs under the RuntimeClass by which a node with NVIDIA's toolkit gives it the driver."""
    assert "nvidia" == VALUES["node"]["runtimeClassName"]
