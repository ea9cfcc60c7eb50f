"""The audit chain and its verification; `forging` is what an owner could do."""
