"""`python -m aliquot.cli` is `aliquot`."""

from aliquot.cli.main import main

main()
