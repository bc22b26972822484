"""The node's pages: metrics, its topology and use as text and as JSON, its version."""
