-- reap: remove expired holders and dead waiters, then serve the queue.
--
-- KEYS     as in the head
-- ARGV     none of its own
-- RETURNS  {tag, next_ms, waiting, own_grants, reaped}: next_ms is 0 when there is more to remove
-- USES     load_state, holder_count, purge, forget_dead_hubs, remove_dead_waiters, serve, append,
--          reply_head

load_state()
local before = holder_count
purge()
local reaped = before - holder_count
forget_dead_hubs()
reaped = reaped + remove_dead_waiters()
serve()
return append(reply_head(), { reaped })
