"""The node agent: what the scheduler planned is what the container gets."""
