"""The engine: turns token ids into token ids. It knows nothing of text, JSON or HTTP.

Importing this package, and every module marked *light* below, loads no torch: the gateway imports those.

request     what a client asks and what it gets back, as typed frames (light)
errors      the engine's error tree (light)
machine     what an engine would find here; `probe` looks, in a process of its own (light)
config      what an engine is started with, and `auto` resolved (light)
client      reserve, submit, stream, abort: the gateway's view of an engine (light)
backlog     how much may wait, and who holds a place (light)
process     the client that serves: an engine process fed from a bounded queue (light)
supervisor  starts it, watches it, starts it again (light)
child       one engine process from spawn to grave (light)
channel     frames over a ZeroMQ socket (light)
private_directory
            where that socket lies (light)
heartbeat   signs of life through a pipe, and how they are judged (light)
restarts, poison
            when to start again, what not to try again (light)
prepare     what a request must satisfy (light)
sequence    the running state of one answer (light)
batch       a plan for one step and what came of it (light)
calibration what steps cost here, and what a hit saves (light)
account     what one request took from the engine and left in its cache (light)
scheduler   which sequences run next, on which pages; a pure state machine, put together from those below (light)
group, groups
            a request as sequences, paid for by a tenant; all of them (light)
deadlines   who is overdue (light)
roster      where each sequence is: running, queued, following, held (light)
waiting, single_flight
            its queue, who is admitted next; and who computes a shared prefix (light)
page_tables whose pages are whose (light)
admission   who of those that wait may run (light)
draft       a step that is being filled (light)
preemption  pages for sequences that grow, at the cost of others (light)
outcomes    what a row brought (light)
publications
            what a sequence leaves in the cache (light)
entries, tips
            cache entries to be made, and where conversations left off (light)
endings     how sequences and requests end (light)
events      what there is to tell clients (light)
totals, counters
            the sums of what was done, and as they are told (light)
lower_tiers what goes down from the device and what comes up, as plans have it (light)
load_costs  whether loading is cheaper than computing (light)
cache_desk  answers questions about the cache
page_moves  what moves pages outside of steps: prefetch, promotion, flush, the end
disk_traffic
            the threads between the host's memory and disk
transfers, page_archive
            a prompt's pages to a file and back, and that file's format
core        scheduler, runner and grammars put together: what every engine is
compilations
            grammars that are being compiled, and for what
matchers    where each sequence is in its grammar
masks       what may come next, awaited as late as can be
runaway     ends strings and numbers that would go on for ever
wakeup      wakes a thread that waits on files (light)
failpoints  named faults for tests (light)
assemble    from a configuration to a core
tier_assembly, tier_budget
            the same for the tiers below the device, and how much they may hold
__main__    the engine process itself
loop        receive, plan, run, commit, send: one screen
llm         the same engine as a library, without a process or a socket
runner      plan to tensors, forward, sample
kv_pool     the tensors behind the pages
page_memory their bytes, to slots of the host's memory and back; `prefault` has that backed beforehand
sampler     logits to tokens
weights     safetensors to parameters
json_file   a JSON object from a model's files (light)
step_inputs a plan as tensors
kv_budget   how many pages to make
logprobs    log-probabilities of the raw distribution
openmp      how long threads wait busily for each other (light)
invariant   the same arithmetic in pieces of one shape, whose every bit is independent of the batch
layers, models, attention, native
            the arithmetic: torch reference, and C kernels for the CPU
hash_model  a model without weights whose every token proves which pages were read
model_store pull, import GGUF, digests
"""
