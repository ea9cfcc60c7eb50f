"""What a program of Pydantic AI leaves to its reader: a model without network; a tool."""

from pydantic_ai.models.test import TestModel

model = TestModel(custom_output_text="Order 4711 was refunded.")


def refund(order: str, cents: int) -> str:
    """Pay back so many cents of an order."""
    return f"paid back {cents} cents of order {order}"
