"""`python -m copyahead`: the same as the command."""

from copyahead.cli import main

if __name__ == "__main__":
    main()
