"""What every route shares: access, bodies, problems, paging, repeats, documentation."""
