"""``python -m rewarm``: the same as the ``rewarm`` command."""

from rewarm.cli.main import main

if __name__ == "__main__":
    main()
