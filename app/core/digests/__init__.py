"""The digest: at most one mail a day to a tenant, and never a finding that none of them lists."""
