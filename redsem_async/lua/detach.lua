-- detach: set the expiry of a held permit once, so that another client can adopt it until then.
--
-- ARGV     held        number of an id of the caller's hub
--          expires_ms  from now, or 'expires_ms:max_hold', as for refresh
--          number      number of this operation, which runs at most once
-- RETURNS  {tag, held}, held being 1, or 0 when the id holds nothing;
--          the error VOID when this operation ran before, or must not run any more: it then
--          changes nothing
--
-- uses: holders (allow_writes_at_maxmemory grant_of load_state parse_lease save_counter), hubs
--       (already_ran note_call), serve (notify_head)

local id, number = hub .. '.' .. ARGV[5], tonumber(ARGV[7])
local expires, max_hold = parse_lease(ARGV[6])

load_state()
if already_ran(number, 'calls') then return redis.error_reply('VOID') end
local grant = grant_of(id)
allow_writes_at_maxmemory()
note_call(number, 'calls')
if not grant then return { tag, 0 } end
if max_hold then expires = math.max(1, math.min(expires, max_hold - grant.held)) end
call('ZADD', holders, now + expires, id)
keep(holders, expires)
keep(facts, expires)
if keyed then keyed.keep(expires) end
keep(hubs, expires + SLACK)
save_counter(expires)
if expires < grant.left and state.waiting > 0 then notify_head() end
return { tag, 1 }
