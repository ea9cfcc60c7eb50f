"""Outbound requests: `posting` sends one and checks what every answer promises."""
