-- release: give permits back, then serve the queue.
--
-- KEYS     as in the head
-- ARGV     owner    hub of the ids; it gets a push message when it is not the caller's hub
--          hold     for how long requests of the caller's process hold their permits lately, in ms
--                   times permits; '' mostly
--          numbers  from here on: of the ids
-- RETURNS  {tag, next_ms, waiting, own_grants, held...}, held being 1, or 0 when the id held
--          nothing; the error UNKNOWNHUB from a client with a grace period: see record_hub()
-- USES     load_state, unknown_hub, unknown_hub_error, parse_ids, now, remove_holders,
--          forbid_restore, raise_mark, publish_to, waiting, purge, serve, append, reply_head,
--          fields, usual_hold, exact

local owner, hold = ARGV[5], tonumber(ARGV[6])
local NUMBERS = 7

load_state()
-- State was lost. The hub sends its facts first, because that begins the grace period.
if released and unknown_hub then return unknown_hub_error() end
local ids, highest = parse_ids(owner, NUMBERS)
local held, removed, seen = {}, {}, {}
for i, expiry in ipairs(call('ZMSCORE', holders, unpack(ids))) do
  -- Of an id that occurs twice in one call, the second is not held.
  held[i] = expiry and tonumber(expiry) > now and not seen[ids[i]] and 1 or 0
  seen[ids[i]] = true
  if held[i] == 1 then removed[#removed + 1] = ARGV[NUMBERS + i - 1] end
end
remove_holders(ids)  -- first, as in allow_writes_at_maxmemory()
forbid_restore(ids)
if owner == hub then
  raise_mark(highest)
elseif #removed > 0 then
  publish_to(owner, 'revoked', table.concat(removed, ','))
end
if hold and fields[1] then
  if usual_hold >= 0 then hold = (usual_hold + hold) / 2 end
  call('HSET', meta, 'hold', exact(math.ceil(hold)))
end
if waiting > 0 then
  purge()
  serve()
end
return append(reply_head(), held)
