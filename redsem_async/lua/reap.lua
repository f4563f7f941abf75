-- reap: remove expired holders and dead waiters, then serve the queue.
--
-- ARGV     none of its own
-- RETURNS  {tag, next_ms, waiting, own_grants, reaped}: next_ms is 0 when there is more to remove
--
-- uses: holders (append load_state purge), hubs (forget_dead_hubs), serve (drop_dead reply_head
--       serve)

load_state()
local before = state.holding
purge()
local reaped = before - state.holding
forget_dead_hubs()
if state.waiting > 0 then reaped = reaped + drop_dead() end
serve()
return append(reply_head(), { reaped })
