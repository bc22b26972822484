"""What the node tells: metrics, its topology and use as text and as JSON, its version."""
