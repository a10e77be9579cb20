"""Structured output: the contract a schema makes and the masks that keep it. Knows no model, no request, no HTTP.

Pure, for whoever wants to answer before anything is queued:

spec            every form of constraint as one tree of nodes
contract        a schema's keywords, each with what is promised about it
normalise/      what a schema means, written so that engines enforce it exactly
openai_strict   OpenAI's strict subset, with its own words for what is outside
validate        whether a finished text satisfies a schema, by an implementation that enforces nothing
dialect         a client's schema in the words of one draft, for that
check_cost      how long it can take, known beforehand
json_text       JSON text to values and back, strictly
limits          what a schema or grammar may ask for, checked before anything expensive
extent          how far a pattern's or a grammar's repetitions unfold
errors          what is raised on purpose

With constraint engines behind them, for the process that decodes:

tokenizer_file  a model's tokenizer.json: which tokens there are and what each spells
vocabulary      what the model's tokens spell
backends/       llguidance, xgrammar, outlines-core
compiler        grammars to compiled grammars: what the engine calls
compile_limits  what compiling may cost
kept            compiled grammars for the next who asks
refusals        refused ones
bench           where one thread of the compiler works
worker_pool     its worker processes, seen from the compiler
wire            what crosses between them
worker          what runs in them
trial           compiling a grammar and following it a few steps
shelf           a process's backends
"""
