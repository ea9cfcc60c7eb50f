"""`python -m records`."""

from records.cli import main

if __name__ == "__main__":
    main()
