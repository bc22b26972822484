"""`python -m aliquot.cli.kubectl` is `kubectl-aliquot`."""

from aliquot.cli.kubectl import main

main()
