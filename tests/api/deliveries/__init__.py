"""The history of deliveries, replays, and the jobs behind them."""
