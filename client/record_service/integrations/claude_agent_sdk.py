"""Claude Agent SDK: `ClaudeAgentOptions(hooks=hooks(recorder))`; each prompt is a record."""

from __future__ import annotations

from typing import Any, final

from claude_agent_sdk import HookMatcher

from record_service.recorder import Record, Recorder, Step
from record_service.recorder.guard import guarded


def hooks(recorder: Recorder) -> dict[Any, list[HookMatcher]]:
    """Return hooks that record prompts and calls of tools, and decide nothing."""
    hook = _Hooks(recorder).hook
    events = (
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolUse",
        "PostToolUseFailure",
        "Stop",
    )
    return {event: [HookMatcher(hooks=[hook])] for event in events}


@final
class _Hooks:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.strict = recorder.strict
        self._records: dict[str, Record] = {}
        self._steps: dict[str, Step] = {}

    async def hook(self, told: Any, tool_use_id: str | None, _: Any) -> dict[str, Any]:
        """Record an event of the agent."""
        self._note(told, tool_use_id or told.get("tool_use_id") or "")
        return {}

    @guarded()
    def _note(self, told: dict[str, Any], tool_use_id: str) -> None:
        event, session_id = told["hook_event_name"], told["session_id"]
        if event == "UserPromptSubmit":
            self._end(session_id)
            self._begin(session_id, told["prompt"])
        elif event == "PreToolUse":
            record = self._records.get(session_id) or self._begin(session_id, None)
            step = record.step(told["tool_name"], kind="execute_tool", inputs=told["tool_input"])
            self._steps[tool_use_id] = step.start(record.root)
        elif event == "PostToolUse" and tool_use_id in self._steps:
            step = self._steps.pop(tool_use_id)
            step.outputs = told.get("tool_response")
            step.end()
        elif event == "PostToolUseFailure" and tool_use_id in self._steps:
            self._steps.pop(tool_use_id).end(str(told.get("error")))
        elif event == "Stop":
            self._end(session_id)

    def _begin(self, session_id: str, prompt: str | None) -> Record:
        title = (prompt or "prompt").strip().partition("\n")[0] or "prompt"
        inputs = None if prompt is None else {"prompt": prompt}
        session = self.recorder.session(session_id)
        record = session.record("invoke_agent", title, inputs=inputs).start()
        self._records[session_id] = record
        return record

    def _end(self, session_id: str) -> None:
        record = self._records.pop(session_id, None)
        if record is None:
            return
        # A call that was refused has no end of its own.
        for tool_use_id, step in list(self._steps.items()):
            if step.record is record:
                self._steps.pop(tool_use_id).end("The call did not end.")
        record.end()
