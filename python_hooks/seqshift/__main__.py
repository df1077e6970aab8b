"""`python -m seqshift`."""

from seqshift.cli import main

main()
