"""What a program of the documents leaves to its reader; the tests put it in front.

By framework: `langgraph`, `openai_agents`, `pydantic_ai`.
"""
