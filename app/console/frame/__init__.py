"""What every page of the console has.

`browser` says what the browser sent beside its input; `access` knows sessions, roles and whose form
it is; `forms` reads input. `rendering` writes a page, with its `navigation` and `notices`; `assets`
serves style and script; `failures` writes errors as pages.
"""
