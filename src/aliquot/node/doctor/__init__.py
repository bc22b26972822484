"""Problems of a node and their remedies: `read_host` reads the node, `examine` evaluates; the second does no I/O."""
