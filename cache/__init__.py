"""The prefix cache's bookkeeping: page ids, token ids and metadata, never a tensor.

lease         what is promised about cached pages, and to whom
accounts      whose pages they are: quotas, floors, pins
node          a page in the tree, the leases that end on it, the root it stands below
radix         pages by the tokens they hold, one tree per root key
blocks        who holds which page: the pool's accounting
entries       leases by id, and what became of them
tombstones    why pages went
return_times  how long what ended in some way takes to be used again, and what keeping it is worth
ghosts        the paths that were evicted, watched on for that
eviction      which idle leaf goes next
cursor        where a sequence stands in the tree
usage         what is noted on a page that is written or used
cached_pages  the tree over the pool: who holds a page, whether it can go, how it comes and goes
dead_roots    what was flushed and is still to be reclaimed
room          pages for who needs them, from those that have to give way
finding       what would be found of a prompt, and what became of the rest
reading       a sequence starts: what is found is held and was used
publishing    what was computed becomes findable
writers       who may still publish
flushing      which pages a flush takes
leasing       promises made, changed and taken back; hard pins
audit         all of it counted anew
prefix_cache  what the scheduler sees: all of these put together
namespace     what makes equal tokens different KV
tiers         pages below the device: in the host's memory and in files
store         small records that outlive a request: the protocol and its errors
memory_store  … as long as the process runs
file_store    … in files that survive it
redis_store   … in Redis, the same for several servers
bulletin      what the servers on one Redis tell each other
redis_link    one Redis as this process reaches it: bounded waits, a breaker
redis_client  redis-py's client for an address
redis_address where a Redis is
"""
