"""The console: pages for people, rendered here, over the same verbs as the API.

`site` puts together what `frame` gives every page and what stands in `pages`.
"""
