"""How the arguments of a call are written. Each style is a grammar of them and a reader that makes JSON of them.

style        what a style is, and what it is told of a tool
json_object  a JSON object, as it is
"""
