"""What the service is compared with: each the way a Python team would write it, well tuned.

`route` accepts; `loop`, `actor` and `celery_app` deliver; `runner` runs those that deliver.
"""
