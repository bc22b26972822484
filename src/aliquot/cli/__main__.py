"""`python -m aliquot.cli` is `aliquot`."""

from aliquot.cli.entry import main

main()
