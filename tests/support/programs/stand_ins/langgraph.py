"""What a program of LangGraph leaves to its reader: a graph, here with fixed answers."""

from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool  # type: ignore[untyped-decorator]
def refund(order: str, cents: int) -> str:
    """Pay back so many cents of an order."""
    return f"paid back {cents} cents of order {order}"


call = {"name": "refund", "args": {"order": "4711", "cents": 4870}, "id": "call_1"}
answers = [AIMessage("", tool_calls=[call]), AIMessage("Order 4711 was refunded.")]
model = FakeMessagesListChatModel(responses=answers)

graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([refund]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
