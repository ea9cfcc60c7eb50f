"""What a program of the documents leaves to its reader: a model, a tool, a graph.

`langgraph`, `openai_agents`, `pydantic_ai`: text that tests put in front of the program.
"""
