"""Tools: what a client may offer, how a model is told of it, what it may say, and how that is read.

definitions  `tools` of a request, checked
choice       `tool_choice` and `parallel_tool_calls`
"""
