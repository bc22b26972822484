"""Aliquot shares GPUs by the fraction and keeps the promise."""
