"""`make test-deploy`: the service on Debian's servers, as an operator deploys it."""
