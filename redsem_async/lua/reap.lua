-- reap: drop expired holders and dead waiters, and serve who waits.
--
-- KEYS     as in the head
-- ARGV     none of its own
-- RETURNS  {tag, next_ms, waiting, mine, reaped}: next_ms is 0 when there is more to do

survey()
local before = holding
purge()
local reaped = before - holding
bury()
reaped = reaped + sweep()
serve()
local reply = standing()
reply[5] = reaped
return reply
