"""A tenant on a machine, for every program that has some: its reservation, its folder, its place at the arbiter."""
