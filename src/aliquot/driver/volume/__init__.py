"""The driver volume: the driver's libraries and programs, found, mirrored, and shown to containers."""
