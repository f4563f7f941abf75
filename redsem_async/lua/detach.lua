-- detach: set the expiry of a held permit once, for somebody else to adopt it by then.
--
-- KEYS     as in the head
-- ARGV     number      of an id of the caller's own hub
--          expires_ms  from now
-- RETURNS  {tag, held}, held being 1, or 0 when it was not

local id, expires = hub .. '.' .. ARGV[5], tonumber(ARGV[6])

survey()
local held = found(id)
if not held then return { tag, 0 } end
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
call('ZADD', holders, now + expires, id)
keep(holders, expires)
keep(tokens, expires)
keep(weights, expires)
keep(hubs, expires + SLACK)
save_counter(expires)
if expires < held[2] and waiting > 0 then nudge() end
return { tag, 1 }
