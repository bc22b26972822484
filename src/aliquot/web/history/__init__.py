"""The past: a ring of the last hour in memory, and 30 days in a file."""
