"""The prompt cache as a resource with owners: what requests may have of it, what it did, and what becomes of it.

namespaces     whose KV is whose: tenants, salts, isolated keys, and the generation that a flush ends
generations    of which none is ever in use again, in one server or in several
segments       where in a rendered prompt its messages and tools stand, and which tokens spell them
objects        cache objects: prompts with a name, a lifetime and an owner; what is kept of them, and when they end
object_fields  what clients may say of one; lifetimes: how they write a time
object_view    an object as clients see it, with what the engine has of it now
content        what an object is made of, read from a client and brought to token ids
prefill        bringing a prompt into the cache without answering it
rewarming      bringing pinned caches back into an engine that was started again
caches         create, get, list, change, delete, warm, move; expiry: ends them when their time is over; latecomers: who uses them after that
lookup         what a request would find
flush          let nobody find these pages again
transfer       objects as files, out and in
stats          what of the cache is whose
settled        the numbers of a request when all is said
accounting     what the cache did for each tenant, key and object; metrics: the same for Prometheus
ledger         a line for each request; ledger_file: where lines go that nobody may wait for
routes         the table of addresses below /v1/caches
fields         what requests say of the cache, as it comes over the wire
ask            what that comes down to, within what the tenant may: a policy for the engine, entries and their leases
openings       what a request begins with because it names a cache object
boundaries     where in a prompt an entry may stand, so that whoever agrees up to there finds it
reasons        why a prompt was found as far as it was
report         what a client is told: `x-cache` and `x_cache`
records        what is remembered of each response for a while; recorder: writes it, and has the reason told at once
telling        a record as it can be read
diagnosis      one record held against another: what was lost, else what changed; diagnoser: against which one
relation       whether two that begin alike have to do with each other
changes        where two prompts part and whose doing it was; volatile: text that is another one each time
explanation    a diagnosis on the wire; sentences: in words
explain        asking for one; dry_run: for a request that is not made
"""
