"""What tests of the console share."""

import pytest
from flask import Flask

from tests.support.api import FreshTenant
from tests.support.console import Visitor


@pytest.fixture
def visitor(app: Flask) -> Visitor:
    """Return somebody who is not signed in."""
    return Visitor(app)


@pytest.fixture
def admin(app: Flask, tenant: FreshTenant) -> Visitor:
    """Return somebody who is signed in with the tenant's root key."""
    signed_in = Visitor(app)
    assert signed_in.sign_in(tenant.root_key).status_code == 303
    return signed_in
