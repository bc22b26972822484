"""What all programs of a cluster take as settings."""

import pytest

from aliquot.kube.settings import BadSettings, ProgramSettings


@pytest.mark.parametrize(
    "text",
    [
        "collector:4318",
        "ftp://collector",
        "http://",
        "http://host:port",
        "nonsense",
        "http://h:0",
        "http://[",
        "http://h?a",
    ],
)
def test_an_endpoint_that_is_no_url_is_refused_in_one_sentence(text: str):
    """The sentence names the option, the value and what may be written."""
    with pytest.raises(BadSettings, match=r'^--otlp-endpoint ".*" is not the URL .* write http://HOST:4318$'):
        ProgramSettings(otlp_endpoint=text).check()
