"""What is near what: the GPUs of one machine, what a pair costs to talk, and which set of them to take.

Pure: reads text that the caller fetched, and answers from integers.
"""

from aliquot.topology.choose import NotEnoughGpus, best_set, left_behind, nearest, set_cost, singular
from aliquot.topology.machine import BadTopology, Topology, TreeNode, bandwidth_gbps, link_cost, parse_topo
