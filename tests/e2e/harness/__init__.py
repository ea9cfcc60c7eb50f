"""A whole service, the faults done to it, and whether nothing was lost by them.

`stack` starts one and `web` a web process alone; `traffic` is what is posted and taken,
`senders` hold each answer to be their own.
`elsewhere` is another host with a worker; `misfortune` has the faults. An `ordeal` is all of these
together, after which the `books` (accounting) must close.
"""
