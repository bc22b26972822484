"""The node agent: gives each container the share that the scheduler planned."""
