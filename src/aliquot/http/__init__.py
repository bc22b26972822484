"""What our HTTP servers have in common: how they listen and serve, certificates that are renewed, bounds."""
