"""What is read from `nvidia-smi topo -m`, and what is refused."""

import pytest
from matrices import SHORT, WHOLE, machine, text_of

from aliquot.topology import BadTopology, parse_topo

# GPUs and the labels between them; rows and columns of network cards do not count.
KNOWN = {
    "a100_8gpu_10nic_2numa": (8, {"NV12"}),
    "aws_g5.12xlarge_4xa10g": (4, {"PHB"}),
    "aws_p3.8xlarge_4xv100": (4, {"NV1", "NV2"}),
    "della_4xa100_cryoem": (4, {"NV4"}),
    "delta_4xa100": (4, {"NV4"}),
    "dgx1v_8xv100_sxm2": (8, {"NV1", "NV2", "SYS"}),
    "dgx2_16xv100_gpuonly": (16, {"NV6"}),
    "dgx_a100_8gpu_10nic": (8, {"NV12"}),
    "h100_vm_4gpu_phb_nics": (4, {"NV18"}),
    "h20_4gpu": (4, {"NV18"}),
    "hgx_a100_80g_8gpu_8nic_roce": (8, {"NV12"}),
    "host_2xrtx5090_phb": (2, {"PHB"}),
    "host_4gpu_2socket_soc": (4, {"PHB", "SYS"}),
    "host_4xa30_nvbridge": (4, {"NV4", "SYS"}),
    "host_8gpu_pcie_sys_64cpu": (8, {"SYS"}),
    "host_8gpu_pix_pxb_sys": (8, {"PIX", "PXB", "SYS"}),
    "host_8xh100_sxm": (8, {"NV18"}),
    "host_8xp100_pcie": (8, {"PIX", "PHB"}),
    "host_8xrtx4090_sys": (8, {"SYS"}),
    "tencent_test_6gpu": (6, {"PIX", "PHB", "SYS"}),
    "vm_8xv100_sxm2_phb": (8, {"NV1", "NV2", "PHB"}),
}
PLAIN = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\t0-3,8\t0\t\tN/A
GPU1\tNV4\t X \t4-7\t1\t\tN/A
"""
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""


@pytest.mark.parametrize("name", WHOLE)
def test_every_real_matrix_is_read(name):
    """Each matrix gives its GPUs and the links between them, and nothing of its network cards."""
    topology = machine(name)
    labels = {label for i, row in enumerate(topology.links) for j, label in enumerate(row) if i != j}

    assert KNOWN[name] == (topology.count, labels)


def test_no_real_matrix_is_left_out():
    """Every matrix in the folder is in the table above."""
    assert sorted(KNOWN) == WHOLE


def test_a_matrix_that_was_cut_off_is_refused_by_its_missing_rows():
    """The sentence names the rows that are not there."""
    with pytest.raises(BadTopology, match="rows GPU5, GPU6, GPU7 are missing, the columns go up to GPU7"):
        machine(SHORT)


def test_cores_and_nodes_are_read_beside_the_links():
    """The nearest cores are a list of numbers and the NUMA node a number."""
    topology = parse_topo(PLAIN)

    assert ((0, 1, 2, 3, 8), (4, 5, 6, 7)) == topology.cores
    assert (0, 1) == topology.numa


@pytest.mark.parametrize("name", WHOLE)
def test_tabs_and_blanks_are_the_same(name):
    """Columns padded with blanks read like columns divided by tabs."""
    assert machine(name) == parse_topo(text_of(name).replace("\t", "    "))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda text: text.lstrip(), id="header without its leading column"),
        pytest.param(lambda text: text.split("\n", 1)[1], id="no header at all"),
        pytest.param(lambda text: text.replace("GPU0\tGPU1", "\x1b[4mGPU0\tGPU1\x1b[0m", 1), id="underlined header"),
        pytest.param(lambda text: text + LEGEND, id="legends behind"),
        pytest.param(lambda text: "Sat Nov 21\n$ nvidia-smi topo -m\n" + text, id="a shell before"),
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="line ends of Windows"),
        pytest.param(lambda text: text.replace(" X ", "X"), id="no blanks around X"),
    ],
)
def test_what_surrounds_a_matrix_does_not_matter(spoil):
    """Other versions and terminals print the same matrix differently."""
    assert parse_topo(PLAIN) == parse_topo(spoil(PLAIN))


def test_network_cards_between_gpus_and_affinities_are_passed_over():
    """A column or row of a network card changes neither links nor cores."""
    with_card = """\
        GPU0    GPU1    mlx5_0  CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV4     PIX     0-3,8           0               N/A
GPU1    NV4      X      SYS     4-7             1               N/A
mlx5_0  PIX     SYS      X
"""
    assert parse_topo(PLAIN) == parse_topo(with_card)


def test_a_view_without_nvlink_is_read():
    """`nvidia-smi topo -mp` prints the way over PCIe alone."""
    topology = parse_topo("     GPU0 GPU1 CPU Affinity\nGPU0 X PXB 0-3\nGPU1 PXB X 0-3\n")

    assert "PXB" == topology.links[0][1]


@pytest.mark.parametrize(("cell", "node"), [("0", 0), ("3", 3), ("N/A", None), ("0-1", None), ("", None)], ids=str)
def test_a_node_that_is_not_one_node_is_unknown(cell, node):
    """N/A, several nodes and an empty column all mean that the node is not known."""
    text = f"     GPU0 CPU Affinity NUMA Affinity\nGPU0 X 0-3 {cell}\n"

    assert (node,) == parse_topo(text).numa


@pytest.mark.parametrize(
    ("cell", "cores"),
    [
        ("0,2,4,", (0, 2, 4)),
        ("0-3,16-1", (0, 1, 2, 3)),
        ("0-3,8-", (0, 1, 2, 3)),
        ("N/A", ()),
        ("0,2,4,6", (0, 2, 4, 6)),
    ],
)
def test_a_cut_list_of_cores_keeps_what_is_whole(cell, cores):
    """nvidia-smi cuts long lists anywhere; a piece that cannot be meant is dropped."""
    assert (cores,) == parse_topo(f"     GPU0 CPU Affinity\nGPU0 X {cell}\n").cores


def test_one_gpu_is_a_machine():
    """A machine with one GPU has a matrix of one cell."""
    topology = parse_topo("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-31\tN/A\n")

    assert (1, (("X",),), 0) == (topology.count, topology.links, topology.tree.gpu)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("GPU1\tNV4", "GPU1\tNV2", "row GPU0, column GPU1 is NV4 but row GPU1, column GPU0 is NV2"),
        ("GPU1\tNV4", "GPU1\tNVX", "there is no matrix|row GPU1 is missing"),
        ("GPU0\t X \tNV4", "GPU0\t X \tFAST", "row GPU0, column GPU1 is 'FAST'; a link is one of NV1"),
        ("GPU0\t X \tNV4\t0-3,8\t0\t\tN/A", "GPU0\t X ", "row GPU0 is cut off, it has 1 of 2 columns"),
        ("GPU1\tNV4\t X ", "GPU1\t X \tNV4", "row GPU0, column GPU1 is NV4|is X; X stands for a GPU and itself"),
        ("GPU0\tGPU1\tCPU", "GPU0\tGPU2\tCPU", "column GPU2 stands where GPU1 is due"),
        ("GPU0\tGPU1\tCPU", "GPU0\tCPU", "row GPU0, column|row GPU1 has no column"),
        ("GPU1\tNV4", "GPU0\tNV4", "row GPU0 is there twice"),
        (PLAIN, "no matrix here\n", "there is no matrix in this text"),
        (PLAIN, "", "there is no matrix in this text"),
        (PLAIN, "GPU0 X NV4 PIX\nGPU1 NV4 X PIX\n", "the line that names the columns is missing"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(old, new, sentence):
    """A refusal is one line that names the place and what is there."""
    with pytest.raises(BadTopology, match=sentence) as caught:
        parse_topo(PLAIN.replace(old, new), where="rack7.txt")

    assert str(caught.value).startswith("rack7.txt: ") and "\n" not in str(caught.value)
