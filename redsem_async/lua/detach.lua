-- detach: set the expiry of a held permit once, for somebody else to adopt it by then.
--
-- KEYS     as in the head
-- ARGV     held        number of an id of the caller's own hub
--          expires_ms  from now
--          number      of this call, which acts once at most
-- RETURNS  {tag, held}, held being 1, or 0 when it was not;
--          the error VOID when it has acted before, or may not act any more: nothing is done

local id, expires, number = hub .. '.' .. ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])

load_state()
if already_ran(number) then return redis.error_reply('VOID') end
local held = current_grant(id)
call('ZREM', holders, '')  -- a removal first: what follows is let through at maxmemory
note_call(number)
if not held then return { tag, 0 } end
call('ZADD', holders, now + expires, id)
add_extra(id, permits_of(id), now + expires)
keep(holders, expires)
keep(tokens, expires)
keep(extra, expires)
keep(hubs, expires + SLACK)
save_counter(expires)
if expires < held[2] and waiting > 0 then notify_head() end
return { tag, 1 }
