"""What is wrong with a node and how it is mended: `read_host` looks, `examine` says; the second does no I/O."""
