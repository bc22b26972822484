"""Expected future fill: what arrivals to come would still put on a node, and what follows from it for a placement."""
