"""The audit chain and the transparency log over HTTP; `chains` reads and exports chains."""
