"""How the arguments of a call are written. Each style is a grammar of them and a reader that makes JSON of them.

style        what a style is, and what it is told of a tool
json_object  a JSON object, as it is
elements     each value between marks that say its name
pythonic     as in a call in Python
gemma        as Gemma 4 writes them

schemas      a schema apart into strings and other values
bare         strings without quotes
separated    parts with something between them, some of which may be missing
custom       tools that take a text, as functions
"""
