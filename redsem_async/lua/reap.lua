-- reap: drop expired holders and dead waiters, and serve who waits.
--
-- KEYS     as in the head
-- ARGV     none of its own
-- RETURNS  {tag, next_ms, waiting, own_grants, reaped}: next_ms is 0 when there is more to do

load_state()
local before = holder_count
purge()
local reaped = before - holder_count
forget_dead_hubs()
reaped = reaped + remove_dead_waiters()
serve()
local reply = reply_head()
reply[5] = reaped
return reply
