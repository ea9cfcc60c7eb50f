"""The stores: their `addresses`, and `redis_reasons` why Redis does not answer."""
