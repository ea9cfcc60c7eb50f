"""The transparency log: its sequencer, keys and commands, restores, rebuilding and succession."""
