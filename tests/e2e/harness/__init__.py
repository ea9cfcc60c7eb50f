"""A whole service, what befalls it, and whether its books close.

`stack` starts one and `web` a web process alone; `traffic` is what is posted and taken.
`elsewhere` is another host and `other_worker` a worker on it; `misfortune` is what goes wrong. An
`ordeal` is all of these together, after which the `books` must close.
"""
