"""Recording what other people's frameworks do, each module an import of its own.

`openai_agents` (a tracing processor), `langchain` (a callback handler, for LangGraph too),
`pydantic_ai` (a capability), `claude_agent_sdk` (hooks), `mcp` (a server's calls of tools).
"""
