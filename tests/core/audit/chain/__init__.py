"""The audit chain alone, in no log; `verifying` is one, with its verifier and its attacker."""
