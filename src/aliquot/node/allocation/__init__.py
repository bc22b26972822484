"""The allocations of one node: kubelet's records of them and ours, and everything that is done to them."""
