"""What a program of OpenAI Agents leaves to its reader: a model without network; a tool."""

from agents import Model, ModelResponse, Usage, function_tool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


class Answering(Model):  # type: ignore[misc]
    """Calls the tool once, then answers."""

    def __init__(self) -> None:
        text = ResponseOutputText(type="output_text", text="Paid back.", annotations=[])
        self.answers = [
            ResponseFunctionToolCall(
                type="function_call",
                call_id="call_1",
                name="refund",
                arguments='{"order": "4711", "cents": 4870}',
            ),
            ResponseOutputMessage(
                id="msg_1", type="message", role="assistant", status="completed", content=[text]
            ),
        ]

    async def get_response(self, *_: object, **__: object) -> ModelResponse:
        return ModelResponse(output=[self.answers.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_: object, **__: object) -> None:
        raise NotImplementedError


model = Answering()


@function_tool  # type: ignore[untyped-decorator]
def refund(order: str, cents: int) -> str:
    """Pay back so many cents of an order."""
    return f"paid back {cents} cents of order {order}"
