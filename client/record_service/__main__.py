"""`python -m record_service`."""

from record_service.cli import main

if __name__ == "__main__":
    main()
