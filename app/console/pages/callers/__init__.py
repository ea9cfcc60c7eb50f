"""Pages of who calls: `keys`, people and their sessions (`sign_in`), and the `operator`'s list."""
