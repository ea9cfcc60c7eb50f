"""Statements of completed sessions: `sealing` signs them, `statements` reads them."""
