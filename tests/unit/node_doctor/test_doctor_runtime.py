"""What a runtime's configuration says of CDI, in each of its forms."""

from pathlib import Path

import pytest

from aliquot.node.doctor.runtime import DEFAULT_FOLDERS, containerd, crio, imports_of, takes_variable

V1 = "[plugins.cri]\nenable_cdi = {}\n"
V2 = "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = {}\ncdi_spec_dirs = ['/run/cdi']\n"
V3 = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = {}\n"


@pytest.mark.parametrize(("form", "folders"), [(V1, DEFAULT_FOLDERS), (V2, ("/run/cdi",)), (V3, DEFAULT_FOLDERS)])
@pytest.mark.parametrize(("word", "expected"), [("true", True), ("false", False)])
def test_containerd_is_read_in_each_version(form: str, folders: tuple[str, ...], word: str, expected: bool):
    """The plugin's section has another name in each."""
    made = containerd("c", [("c", form.format(word))])

    assert (expected, folders) == (made.cdi, made.folders)


@pytest.mark.parametrize(
    ("text", "release", "expected"),
    [
        ("version = 2", (), None), ("version = 2", (1, 7), False), ("version = 2", (2, 1), True),
        ("version = 3", (), True), ("", (1, 6), False),
    ],
)  # fmt: skip
def test_what_is_not_set_is_the_releases_own(text: str, release: tuple[int, ...], expected: bool | None):
    """CDI is on from 2.0, and a configuration of version 3 is no older release's."""
    assert expected is containerd("c", [("c", text)], release).cdi


def test_an_imported_file_replaces_the_whole_section():
    """containerd takes sections from the last file that has them, so a setting can be lost by an import."""
    other = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = ['/etc/cdi']\n"

    made = containerd("a", [("a", V3.format("false")), ("b", other)])

    assert (True, ("/etc/cdi",)) == (made.cdi, made.folders)
    assert ("/etc/containerd/conf.d/*.toml",) == imports_of("imports = ['conf.d/*.toml']", Path("/etc/containerd"))


def test_a_disabled_plugin_serves_nobody():
    """As packages for Docker alone are configured."""
    assert not containerd("c", [("c", 'disabled_plugins = ["cri"]')]).serves_kubelet


def test_crio_adds_its_files_up():
    """CDI is always on there; the last file that names folders wins."""
    first, last = '[crio.runtime]\ncdi_spec_dirs = ["/a"]', '[crio.runtime]\ncdi_spec_dirs = ["/run/cdi"]'

    assert (True, ("/run/cdi",)) == (crio("c", [("a", first), ("b", last)]).cdi, crio("c", [("b", last)]).folders)
    assert DEFAULT_FOLDERS == crio("c", [("a", "[crio.network]")]).folders


def test_a_file_that_is_no_toml_is_named():
    """With the place, so that it can be mended."""
    assert "b: " == containerd("a", [("b", "version = ")]).trouble[:3]
    assert "b: " == crio("a", [("b", "x = ")]).trouble[:3]


@pytest.mark.parametrize(
    "text",
    [
        "version = '2'", "imports = 5", "disabled_plugins = 'cri'", "plugins = 1", "plugins.cri = true",
        "plugins.cri.enable_cdi = 'yes'", "plugins.cri.cdi_spec_dirs = '/run/cdi'",
    ],
)  # fmt: skip
def test_a_setting_of_another_kind_is_named(text: str):
    """What it has to be stands there, and nothing is made of the rest."""
    assert "c: Expected `" == containerd("c", [("c", text)]).trouble[:13]
    assert () == imports_of(text, Path("/etc/containerd"))


@pytest.mark.parametrize("text", ["crio = 1", "crio.runtime = 3", "crio.runtime.cdi_spec_dirs = '/run/cdi'"])
def test_a_setting_of_another_kind_is_named_of_crio_too(text: str):
    """In the same words."""
    assert "c: Expected `" == crio("c", [("c", text)]).trouble[:13]


def test_the_default_runtime_is_read_of_both_programs():
    """NVIDIA's toolkit makes its runtime the default there when it is told to."""
    text = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = 'nvidia'\n"

    assert "nvidia" == containerd("c", [("c", text)]).default
    assert "nvidia" == crio("c", [("a", "[crio.runtime]\ndefault_runtime = 'nvidia'"), ("b", "[crio.runtime]")]).default
    assert "" == containerd("c", [("c", V2.format("true"))]).default


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True), ("accept-nvidia-visible-devices-envvar-when-unprivileged = true", True),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = false", False), ("=", False),
    ],
)  # fmt: skip
def test_nvidias_runtime_takes_the_variable_unless_it_is_told_not_to(text: str, expected: bool):
    """A setting that is missing is on."""
    assert expected is takes_variable(text)
