"""What a JSON schema means, worked out far enough that a constraint engine enforces it exactly. Pure Python.

A schema is read into nodes, its in-place logic (allOf, anyOf, oneOf, not, if, $ref, ...) is solved type by type into
alternatives without logic, and those are written down as a schema that uses only what engines were seen to keep.

reader       checks that a schema is one; nodes with their references resolved
node         a subschema: its assertions, each with its place
locations    which keywords hold subschemas, which are assertions, which say nothing
expand       states (sets of subschemas that hold or do not hold at once) into alternatives
numbers strings arrays objects   one alternative for values of that type
objects_regions  which keys of an object that nobody names have to satisfy what
inhabited    which states have any value at all
render       states as a schema for the engines
engines      which engines keep what was written exactly

Regular expressions, as ECMA-262 has them:

expression   the syntax tree, and its text again
parse        text into a tree
search       what a pattern with its anchors and lookarounds finds, as a set of whole strings
automaton    deciding about such sets: members, emptiness, intersection, complement
formats      `format` as expressions
"""
