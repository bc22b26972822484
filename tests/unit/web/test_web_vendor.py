"""Files of others that are served."""

import hashlib
import re
from importlib.resources import files

VENDOR = files("aliquot.web") / "static" / "vendor"


def test_every_file_is_the_one_that_is_named():
    """Each vendored file stands in the README with its version, licence and checksum, and is exactly that."""
    listed = dict(re.findall(r"^\| (\S+) \|.*\| (\w{64}) \|$", (VENDOR / "README.md").read_text(), re.M))
    there = {
        entry.name: hashlib.sha256(entry.read_bytes()).hexdigest()
        for entry in VENDOR.iterdir()
        if entry.name.endswith((".js", ".css"))
    }

    assert listed == there
    assert {"LICENSE.htmx", "LICENSE.uPlot"} <= {entry.name for entry in VENDOR.iterdir()}


def test_no_file_asks_for_another():
    """No served file names a source map or imports from another host."""
    for folder in (VENDOR, files("aliquot.web") / "static"):
        for entry in folder.iterdir():
            if entry.name.endswith((".js", ".css")):
                text = entry.read_text()
                assert "sourceMappingURL" not in text and "@import" not in text and 'import("http' not in text
