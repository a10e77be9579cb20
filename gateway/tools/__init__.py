"""Tools: what a client may offer, how a model is told of it, what it may say, and how that is read.

definitions  what a tool is
offer        what a request offers, checked and audited
choice       `tool_choice` and `parallel_tool_calls`
render       tools as a prompt shows them
spelling     calls as a prompt shows them
family       how the models of one family write a reply
families     the families that are known
arguments/   the styles in which arguments are written
structure    a reply as a grammar
parser       a reply taken apart as it arrives
shapes       the pieces formats are put together from
source       the text of a reply, for readers that wait in the middle of it
calls        the calls in a reply
verdicts     what a finished reply with calls is worth
"""
