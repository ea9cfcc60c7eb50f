"""A process that seals anew, two rows a transaction, until it is done or killed.

Called as `python -m tests.jobs.resealing.reseal_process`, with the service's settings in the
environment.
"""

from app import settings
from app.core.blobs import store
from app.core.master_keys import resealing
from app.database import Database

if __name__ == "__main__":
    resealing.MOST_ROWS = 2
    given = settings.load()
    blobs = store.of(given.blob_url)
    resealing.reseal(Database(given.database_url), given.master_keys, blobs, force=True)
