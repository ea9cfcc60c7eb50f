"""MCP servers: `recorded(server, recorder)` records each `tools/call`."""

from __future__ import annotations

from functools import wraps
from typing import Any, TypeVar

from mcp.server.mcpserver import MCPServer

from record_service.recorder import Recorder

_Server = TypeVar("_Server", bound=MCPServer[Any])


def recorded(server: _Server, recorder: Recorder) -> _Server:
    """Record each call of a tool of this server from now on: a record, or the current one's step.

    A tool that fails, and a result that says so, is a step that failed.
    """
    call_tool = server.call_tool

    @wraps(call_tool)
    async def call(name: str, arguments: dict[str, Any], *rest: Any, **options: Any) -> Any:
        with recorder.step(name, kind="execute_tool", inputs=arguments) as step:
            step.outputs = result = await call_tool(name, arguments, *rest, **options)
            if getattr(result, "is_error", False):
                step.end("The tool answered with an error.")
        return result

    # Its handler of the request calls this by its name.
    vars(server)["call_tool"] = call
    return server
