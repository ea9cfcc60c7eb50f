"""A run of the Claude Agent SDK's client without a network: its command's part is spoken here."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, Transport
from record_service import Recorder
from record_service.integrations.claude_agent_sdk import hooks

SESSION = "11111111-2222-4333-8444-555555555555"


class Scripted(Transport):  # type: ignore[misc,unused-ignore]  # it may not be there
    """Answers the SDK's control requests, and calls its hooks as the command does."""

    def __init__(self) -> None:
        self.out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.hooks: dict[str, str] = {}
        self.answered = asyncio.Event()

    async def connect(self) -> None:
        """Do nothing: there is no process."""

    async def write(self, data: str) -> None:
        """Take what the SDK sends."""
        told = json.loads(data)
        if told["type"] == "control_request":
            for event, matchers in (told["request"].get("hooks") or {}).items():
                self.hooks[event] = matchers[0]["hookCallbackIds"][0]
            response = {"subtype": "success", "request_id": told["request_id"], "response": {}}
            await self.out.put({"type": "control_response", "response": response})
        elif told["type"] == "control_response":
            assert told["response"]["subtype"] == "success", told
            self.answered.set()

    async def hook(self, event: str, call: str | None = None, **told: Any) -> None:
        """Call a hook; return once it has answered."""
        self.answered.clear()
        told = {"session_id": SESSION, "hook_event_name": event, "cwd": "/", **told}
        request: dict[str, Any] = {
            "subtype": "hook_callback",
            "callback_id": self.hooks[event],
            "input": told,
        }
        request["tool_use_id"] = call
        await self.out.put({"type": "control_request", "request_id": event, "request": request})
        await self.answered.wait()

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what the command says."""
        while (said := await self.out.get()) is not None:
            yield said

    async def close(self) -> None:
        """End."""
        await self.out.put(None)

    def is_ready(self) -> bool:
        """Say that it is there."""
        return True

    async def end_input(self) -> None:
        """Do nothing."""


async def main() -> None:
    """Send a prompt whose answer uses two tools."""
    recorder = Recorder(agent="refund-desk", principal="dana@example.com", strict=True)
    transport = Scripted()
    async with ClaudeSDKClient(ClaudeAgentOptions(hooks=hooks(recorder)), transport=transport):
        await transport.hook("UserPromptSubmit", prompt="Please refund order 4711.")
        for number, tool in enumerate(("refund", "mail")):
            call = f"t{number}"
            about: dict[str, Any] = {
                "tool_name": tool,
                "tool_input": {"order": "4711"},
                "tool_use_id": call,
            }
            await transport.hook("PreToolUse", call, **about)
            if tool == "refund":
                await transport.hook("PostToolUse", call, tool_response={"paid": True}, **about)
            else:
                await transport.hook("PostToolUseFailure", call, error="no such address", **about)
        await transport.hook("Stop", stop_hook_active=False)
    assert recorder.close()


asyncio.run(main())
