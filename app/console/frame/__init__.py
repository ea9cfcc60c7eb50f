"""The frame of every console page.

`browser` reads the browser's cookie and headers; `access` checks sessions, roles and form tokens,
and looks for banners. `forms` reads input, also names in place of ids, `zone` times.
`rendering` writes a page, with its `navigation`; `assets` serves style and script;
`lists` a list as a page and as a file.
"""
