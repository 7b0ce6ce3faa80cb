"""``python -m moeguard``."""

from moeguard.cli.main import main

if __name__ == "__main__":
    main()
