"""Constraint engines behind one protocol.

base          what a backend is, what it compiles to, and a place in it
route         which of them a grammar is for

llguidance    schemas, regular expressions, Lark, trees: the one that enforces most
lark          any tree as llguidance's dialect of Lark
xgrammar      EBNF, trees with EBNF, and schemas that it enforces exactly
outlines      short lists of choices: masks that are only copied
short_choice  which lists those are
segments      trees cut at special tokens, for an engine that knows none

spelling      forced text in the model's own tokens
rows          masks that do not depend on the place in a grammar
failures      what an engine's own exceptions become
"""
