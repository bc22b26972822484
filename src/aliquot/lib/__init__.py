"""Code shared by several packages and forbidden to deciders: files, bounded caches, logging, the package's version."""
