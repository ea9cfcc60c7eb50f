"""LangChain and LangGraph: `config={"callbacks": [RecordingHandler(recorder)]}`.

Each run without a parent is a record; a graph's `thread_id` is its session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult

from record_service.recorder import Record, Recorder, Step
from record_service.recorder.guard import guarded

_SESSIONS = ("session_id", "thread_id", "conversation_id")


@final
class RecordingHandler(BaseCallbackHandler):  # type: ignore[misc,unused-ignore]  # it may not be there
    """Records runs; `principal` and the session may stand in a run's metadata."""

    # On the thread that runs: another would finish in another order.
    run_inline = True

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.strict = recorder.strict
        self.raise_error = recorder.strict
        self._open: dict[UUID, Step | Record] = {}

    @guarded()
    def _begin(self, kind: str, told: Any, inputs: Any, run_id: UUID, options: Any) -> None:
        told = told or {}
        name = options.get("name") or told.get("name") or (told.get("id") or [kind])[-1]
        above = self._open.get(options.get("parent_run_id"))
        if above is None:
            metadata = options.get("metadata") or {}
            external_id = next((str(metadata[n]) for n in _SESSIONS if n in metadata), None)
            session = self.recorder.here()
            if external_id is not None or "principal" in metadata:
                session = self.recorder.session(
                    external_id or session.external_id, principal=metadata.get("principal")
                )
            self._open[run_id] = session.record(kind, str(name), inputs=inputs).start()
            return
        record, parent = (above, above.root) if isinstance(above, Record) else (above.record, above)
        step = record.step(str(name), kind=kind, inputs=inputs)
        parameters = options.get("invocation_params") or {}
        model = parameters.get("model") or parameters.get("model_name")
        if model:
            step.attributes["gen_ai.request.model"] = str(model)
        self._open[run_id] = step.start(parent)

    @guarded()
    def _end(self, run_id: UUID, outputs: Any, error: BaseException | None = None) -> None:
        found = self._open.pop(run_id, None)
        if found is None:
            return
        # A graph that waits for a person has not failed.
        if error is not None and type(error).__name__ == "GraphInterrupt":
            outputs, error = {"interrupt": error.args}, None
        found.outputs = outputs
        found.end(error)

    def on_chain_start(
        self, serialized: dict[str, Any], inputs: Any, *, run_id: UUID, **options: Any
    ) -> None:
        """Begin a run of a chain or a graph, or of a part of it."""
        self._begin(
            "chain" if options.get("parent_run_id") else "invoke_agent",
            serialized,
            inputs,
            run_id,
            options,
        )

    def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **options: Any
    ) -> None:
        """Begin a call of a tool."""
        inputs = options.get("inputs") or input_str
        self._begin("execute_tool", serialized, inputs, run_id, options)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        **options: Any,
    ) -> None:
        """Begin a call of a chat model."""
        self._begin("chat", serialized, {"messages": messages}, run_id, options)

    def on_llm_start(
        self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **options: Any
    ) -> None:
        """Begin a call of a model of texts."""
        self._begin("text_completion", serialized, {"prompts": prompts}, run_id, options)

    def on_retriever_start(
        self, serialized: dict[str, Any], query: str, *, run_id: UUID, **options: Any
    ) -> None:
        """Begin a search."""
        self._begin("retrieval", serialized, {"query": query}, run_id, options)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """End it."""
        self._end(run_id, outputs)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """End it."""
        self._end(run_id, output)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """End it."""
        self._end(run_id, response)

    def on_retriever_end(self, documents: Sequence[Document], *, run_id: UUID, **_: Any) -> None:
        """End it."""
        self._end(run_id, {"documents": documents})

    def _failed(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._end(run_id, None, error)

    on_chain_error = on_tool_error = on_llm_error = on_retriever_error = _failed
