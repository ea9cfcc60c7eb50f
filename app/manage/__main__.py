"""`python -m app.manage`."""

import sys

from app.lib import imports

with imports.without_collection():
    from app.manage.commands import main

if __name__ == "__main__":
    sys.exit(main())
