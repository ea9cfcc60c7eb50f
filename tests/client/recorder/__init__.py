"""`Recorder` against the service on a socket."""
