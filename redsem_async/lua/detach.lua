-- detach: set the expiry of a held permit once, so that another client can adopt it until then.
--
-- KEYS     as in the head
-- ARGV     held        number of an id of the caller's hub
--          expires_ms  from now, or 'expires_ms:max_hold', as for refresh
--          number      number of this operation, which runs at most once
-- RETURNS  {tag, held}, held being 1, or 0 when the id holds nothing;
--          the error VOID when this operation ran before, or must not run any more: it then
--          changes nothing
-- USES     load_state, already_ran, current_grant, allow_writes_at_maxmemory, note_call, now,
--          add_extra, permits_of, keep, SLACK, save_counter, waiting, notify_head, keyed, slotted,
--          parse_lease, held_for

local id, number = hub .. '.' .. ARGV[5], tonumber(ARGV[7])
local expires, max_hold = parse_lease(ARGV[6])

load_state()
if already_ran(number, 'calls') then return redis.error_reply('VOID') end
local held = current_grant(id)
allow_writes_at_maxmemory()
note_call(number, 'calls')
if not held then return { tag, 0 } end
if max_hold then expires = math.max(1, math.min(expires, max_hold - held_for(held[1]))) end
call('ZADD', holders, now + expires, id)
add_extra(id, permits_of(id), now + expires)
keep(holders, expires)
keep(tokens, expires)
keep(extra, expires)
if keyed then keyed.keep(expires) end
if slotted then slotted.keep(expires) end
keep(hubs, expires + SLACK)
save_counter(expires)
if expires < held[2] and waiting > 0 then notify_head() end
return { tag, 1 }
