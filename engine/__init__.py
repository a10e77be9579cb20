"""The engine: turns token ids into token ids. It knows nothing of text, JSON or HTTP.

Importing this package, and every module marked *light* below, loads no torch: the gateway imports those.

request     what a client asks and what it gets back, as typed frames (light)
errors      the engine's error tree (light)
machine     what an engine would find here; `probe` looks, in a process of its own (light)
config      what an engine is started with, and `auto` resolved (light)
channel     frames over a ZeroMQ socket (light)
client      submit, stream, abort: the gateway's view of an engine (light)
process     spawn, watch and restart an engine process (light)
sequence    the running state of one answer (light)
batch       a plan for one step and what came of it (light)
scheduler   which sequences run next, on which pages; a pure state machine (light)
group       its view of a request: the sequences, the tenant (light)
waiting     its queue: who is admitted next (light)
failpoints  named faults for tests (light)
loop        receive, plan, run, commit, send: one screen
llm         the same engine as a library, without a process or a socket
runner      plan to tensors, forward, sample
kv_pool     the tensors behind the pages
sampler     logits to tokens
weights     safetensors to parameters
layers, models, attention, native
            the arithmetic: torch reference, and C kernels for the CPU
hash_model  a model without weights whose every token proves which pages were read
model_store pull, import GGUF, digests
"""
