"""Placement policies, one module each, with the source of its rule in its docstring."""
