"""What rules promise while workers die, transactions commit late and rules change (`turns`)."""
