"""Period exports over HTTP: orders and downloads; their files, changed; jobs that are killed."""
