"""Pydantic AI: `Agent(…, capabilities=[Recording(recorder)])`; each run is a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.agent import AgentRunResult
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.tools import ToolDefinition

from record_service.recorder import Recorder, Step


@dataclass
class Recording(AbstractCapability[Any]):  # type: ignore[misc,unused-ignore]  # it may not be there
    """Records runs, with the calls of models and tools as steps.

    The session is the current one of the recorder, else the run's conversation.
    """

    recorder: Recorder

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> AgentRunResult[Any]:
        """Record a run."""
        session = self.recorder.current_session.get()
        if session is None:
            conversation = getattr(ctx, "conversation_id", None) or ctx.run_id
            session = self.recorder.session(conversation)
        name = getattr(ctx.agent, "name", None) or "agent"
        with session.record("invoke_agent", name, inputs={"prompt": ctx.prompt}) as record:
            result: AgentRunResult[Any] = await handler()
            record.outputs = result.output
        return result

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, handler: Any
    ) -> ModelResponse:
        """Record a request to a model."""
        step = self._step("chat", ctx, f"chat {ctx.model.model_name}", request_context.messages)
        with step:
            response: ModelResponse = await handler(request_context)
            step.outputs = {"parts": response.parts}
            if isinstance(step, Step):
                step.attributes.update(
                    {
                        "gen_ai.request.model": ctx.model.model_name,
                        "gen_ai.usage.input_tokens": response.usage.input_tokens,
                        "gen_ai.usage.output_tokens": response.usage.output_tokens,
                    }
                )
        return response

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: Any,
        handler: Any,
    ) -> Any:
        """Record a call of a tool."""
        with self._step("execute_tool", ctx, call.tool_name, args) as step:
            step.outputs = result = await handler(args)
        return result

    def _step(self, kind: str, ctx: RunContext[Any], name: str, inputs: Any) -> Any:
        told = inputs if isinstance(inputs, dict) else {"messages": inputs}
        return self.recorder.step(name, kind=kind, inputs=told)
