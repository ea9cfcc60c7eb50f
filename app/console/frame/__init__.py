"""The frame of every console page.

`browser` reads the browser's cookie and headers; `access` checks sessions, roles and form tokens;
`forms` reads input. `rendering` writes a page, with its `navigation` and `notices`; `assets`
serves style and script; `failures` writes errors as pages.
"""
