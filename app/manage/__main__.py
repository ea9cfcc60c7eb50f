"""`python -m app.manage`."""

import sys

from app.lib import process

with process.importing():
    from app.manage.commands import main

if __name__ == "__main__":
    sys.exit(main())
