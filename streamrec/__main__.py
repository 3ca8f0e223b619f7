"""`python -m streamrec`: the command line."""

from streamrec.cli import main

main()
