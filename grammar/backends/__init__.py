"""Constraint engines behind one protocol.

base          what a backend is, what it compiles to, and a place in it
llguidance    schemas, regular expressions, Lark, trees: the one that enforces most
xgrammar      EBNF, and schemas it enforces exactly
outlines      short lists of choices and short patterns: the fastest masks
"""
