"""`python -m rulka.cli`: the `rulka` command."""

from rulka.cli import main

if __name__ == "__main__":
    main()
