"""The prefix cache's bookkeeping: page ids, token ids and metadata, never a tensor.

blocks        who holds which page: the pool's accounting
radix         pages by the tokens they hold, one tree per root key
prefix_cache  what the scheduler sees: match, publish, evict, lease, flush
accounts      whose pages they are: quotas, floors, pins
entries       leases by id, and what became of them
flushing      which pages a flush takes
tombstones    why pages went
eviction      which idle leaf goes next
lease         what is promised about cached pages, and to whom
namespace     what makes equal tokens different KV
tiers         pages below the device: in the host's memory and in files
store         small records that outlive a request: the protocol and its errors
memory_store  … as long as the process runs
file_store    … in files that survive it
redis_store   … in Redis, the same for several servers
redis_link    one Redis as this process reaches it: bounded waits, a breaker
redis_client  redis-py's client for an address
redis_address where a Redis is
"""
