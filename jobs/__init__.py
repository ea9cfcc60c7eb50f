"""The work: Dramatiq actors, and what each worker process holds while it runs them."""
