"""`python -m aliquot.cli.kubectl` is `kubectl-aliquot`."""

from aliquot.cli.entry import kubectl

kubectl()
