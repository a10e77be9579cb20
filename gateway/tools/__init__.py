"""Tools: what a client may offer, how a model is told of it, what it may say, and how that is read.

definitions  what a tool is
offer        what a request offers, checked and audited
choice       `tool_choice` and `parallel_tool_calls`
"""
